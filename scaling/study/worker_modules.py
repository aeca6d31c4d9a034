"""What the processes of a launch run, and what a zygote imports for them. Imports nothing itself."""

WORKER = "scaling.worker"  # what each process of a launch runs

IMPORTED_BEFORE_FORKS = (
    WORKER,
    "scaling.aggregators.one_bit",
    "scaling.aggregators.host",
    "scaling.study.training_cells",
    "scaling.study.rank.convergence",
    "scaling.study.rank.iteration",
    "scipy.special",  # a measurement's first look at its interval would import it
    "torch._dynamo",  # the first optimizer, and DDP, would import it
)  # then a worker imports nothing that takes time
