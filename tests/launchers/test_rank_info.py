"""Which rank a process is: exactly as its launcher says, and never a world of one by default."""

import pytest

from launchers.rank_info import FIELDS, LAUNCHER_VARIABLE, TABLES, RankError, RankInfo

VALUES = ("5", "1", "8", "4")
OF_MPI = ("{}_RANK", "{}_LOCAL_RANK", "{}_SIZE", "{}_LOCAL_SIZE")
NAMES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "openmpi": [name.format("OMPI_COMM_WORLD") for name in OF_MPI],
    "mpich": ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "horovodrun": [name.format("HOROVOD") for name in OF_MPI],
}
STARTED = {launcher: dict(zip(names, VALUES, strict=True)) for launcher, names in NAMES.items()}
TORCHRUN = STARTED["torchrun"]
SRUN = {
    **{"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
    **{"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]"},
}
STARTED["srun"] = SRUN
FIRST = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def without(variables, name):
    return {key: value for key, value in variables.items() if key != name}


def numbers(info):
    return info.rank, info.local_rank, info.world_size, info.local_world_size


@pytest.mark.parametrize("launcher", STARTED)
def test_variables_of_a_launcher_are_read_and_torchruns_come_first(launcher):
    info = RankInfo.from_env({**STARTED[launcher], "HOME": "/root"})
    assert (numbers(info), info.launcher, info.table) == ((5, 1, 8, 4), launcher, launcher)
    named = RankInfo.from_env({**STARTED[launcher], LAUNCHER_VARIABLE: "mine"})
    assert (named.launcher, named.table) == ("mine", launcher)
    assert RankInfo.from_env({**STARTED[launcher], **TORCHRUN}).table == "torchrun"


def test_it_says_which_variable_gave_each_value():
    info = RankInfo.from_env({**TORCHRUN, LAUNCHER_VARIABLE: "local"})
    assert info.variables == dict(zip(FIELDS, TORCHRUN, strict=True))
    said = "rank 5 (RANK) of 8 (WORLD_SIZE), local rank 1 (LOCAL_RANK) of 4, started by local"
    assert info.describe() == said


@pytest.mark.parametrize(("variables", "job_id"), [
    (TORCHRUN, None),
    ({**TORCHRUN, "SLURM_JOB_ID": "17"}, "17"),
    ({**TORCHRUN, "SLURM_JOB_ID": ""}, None),
    ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, None),
    (SRUN, "17"),
])  # fmt: skip
def test_number_of_the_job_is_recorded_where_there_is_one(variables, job_id):
    assert RankInfo.from_env(variables).job_id == job_id


NONE_IS_SET = "(?s)no launcher's variables are set.*torchrun: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE"


@pytest.mark.parametrize(("environ", "message"), [
    ({"HOME": "/root"}, f"{NONE_IS_SET}.*torchrun --nproc-per-node=N -m scaling.worker STUDY"),
    ({"SOME_RANK": "0"}, "of another launcher name the variables in SCALING_RANK_VARIABLES"),
    ({"PMI_RANK": "0", "PMI_SIZE": "2"}, NONE_IS_SET),  # srun's PMI-2 sets them: no MPICH
    (without(SRUN, "SLURM_STEP_TASKS_PER_NODE"), NONE_IS_SET),  # a batch script
    *((without(TORCHRUN, name), f"torchrun set .*, but {name} is missing") for name in TORCHRUN),
    *(
        ({**TORCHRUN, name: value}, f"{name} is '{value}'; it must be a number")
        for name in TORCHRUN
        for value in ("", "two", "1.5")
    ),
    ({**TORCHRUN, "RANK": "-1"}, "RANK is -1; it must not be negative"),
    *(
        ({**TORCHRUN, name: value}, "torchrun's variables contradict one another")
        for name, value in zip(TORCHRUN, "8400", strict=True)
    ),
    ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4,3"}, "srun put 4,3 tasks on the nodes .*--ntasks-per-node"),
    ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "many"}, "SLURM_STEP_TASKS_PER_NODE: 'many'"),
    ({**SRUN, "SLURM_LOCALID": "2"}, "task 5 is number 2 of 4 on its node.*--distribution=block"),
    ({**SRUN, "SLURM_PROCID": "9"}, "srun's variables contradict one another"),
    ({**SRUN, "SLURM_NTASKS": "x"}, "SLURM_NTASKS is 'x'"),
    ({**SRUN, "SLURM_STEP_NUM_TASKS": "4"}, "NTASKS is 8, and SLURM_STEP_NUM_TASKS makes 4 tasks"),
    ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4(x3)"}, "is 8, and SLURM_STEP_TASKS_PER_NODE makes 12"),
    (dict(zip(TABLES["flux"].values(), "0052", strict=True)), r"5 on 2 hosts .*--tasks-per-node"),
    ({"SCALING_RANK_VARIABLES": "A,B", "A": "0", "B": "1"},
     "SCALING_RANK_VARIABLES is 'A,B'; it must name the variables of rank,"),
], ids=str)  # fmt: skip
def test_variables_that_make_no_rank_are_an_error_that_names_them(environ, message):
    with pytest.raises(RankError, match=message):
        RankInfo.from_env(environ)


@pytest.mark.parametrize("launcher", TABLES)
def test_every_table_names_every_field(launcher):
    table = TABLES[launcher]
    assert (tuple(table), len(set(table.values()))) == (FIELDS, len(FIELDS))
    info = RankInfo.from_env(dict(zip(table.values(), "0011", strict=True)))
    assert (info.rank, info.world_size, info.launcher) == (0, 1, launcher)


@pytest.mark.parametrize(
    "more", [{}, {"SLURM_STEP_NODELIST": "(null)"}, {"SLURM_NODEID": "1", "SLURMD_NODENAME": "n2"}], ids=str
)
def test_tasks_of_srun_meet_on_the_first_host_of_their_job(more):
    meeting = RankInfo.from_env({**SRUN, **more}).meeting_variables({**SRUN, **more})
    assert meeting == {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "n1", "MASTER_PORT": "20017"}
    # torchrun inside a task sets where the ranks meet by itself.
    assert RankInfo.from_env({**SRUN, **more, **TORCHRUN}).meeting_variables(SRUN) == {}


@pytest.mark.parametrize(("change", "message"), [
    ({"SLURM_NODEID": "0"}, "would meet on n1, and rank 0 is on another one"),  # fifth of four a node
    ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n2"}, "on n1, and rank 0 is on n2"),
    ({"SLURM_JOB_NODELIST": "(null)"}, "no host name in the node list"),
    ({"SLURM_JOB_NODELIST": ""}, "where do the workers meet.*set MASTER_ADDR and MASTER_PORT"),
])  # fmt: skip
def test_place_to_meet_that_cannot_be_told_or_where_rank_0_is_not_is_refused(change, message):
    environ = {**SRUN, **change}
    with pytest.raises(RankError, match=message):
        RankInfo.from_env(environ).meeting_variables(environ)


def test_host_file_that_has_rank_0_elsewhere_is_refused_by_every_rank_with_both_hosts(tmp_path):
    (tmp_path / "hosts").write_text("n2\n" * 4 + "n1\n" * 4)
    for rank in range(8):
        own = {**SRUN, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 4)}
        for order in ({"SLURM_HOSTFILE": str(tmp_path / "hosts")}, {"SLURM_ARBITRARY_NODELIST": "n2,n1"}):
            environ = {**own, **order}
            with pytest.raises(RankError, match="would meet on n1, and rank 0 is on n2"):
                RankInfo.from_env(environ).meeting_variables(environ)


@pytest.mark.parametrize("address", ["n2", "n1-ib0", "head.internal", "10.0.0.7"])
@pytest.mark.parametrize(
    "change", [{**FIRST, "SLURMD_NODENAME": "n2"}, {"SLURM_ARBITRARY_NODELIST": "n2,n1"}], ids=str
)
def test_another_name_that_the_user_gives_is_taken_and_not_compared(address, change):
    environ = {**SRUN, **change, "MASTER_ADDR": address}
    assert RankInfo.from_env(environ).meeting_variables(environ)["MASTER_ADDR"] == address


OPENMPI = STARTED["openmpi"]


@pytest.mark.parametrize(
    "exported",
    [
        {"WORLD_SIZE": "8"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"},
        {"NODE_RANK": "0", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.4", "AZUREML_RUN_ID": "r1"},
        {"JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4", "WORLD_SIZE": "4"},
    ],
    ids=["exported before srun", "a PyTorchJob's", "without LOCAL_WORLD_SIZE", "AzureML's", "jsrun's"],
)
@pytest.mark.parametrize("complete", [OPENMPI, SRUN], ids=["mpirun", "srun"])
def test_variables_that_are_set_by_half_are_passed_over_and_that_is_said(exported, complete):
    info = RankInfo.from_env({**complete, **exported})
    assert info.table == ("openmpi" if complete is OPENMPI else "srun")
    assert "torchrun set " in info.describe()
    assert "LOCAL_WORLD_SIZE is missing" in info.describe()


@pytest.mark.parametrize("launcher", ["pals", "flux", "mvapich2"])
def test_launchers_that_do_not_say_where_ranks_meet_are_told_to(launcher):
    values = ("5", "1", "8", "2" if launcher == "flux" else "4")  # Flux has hosts
    environ = dict(zip(TABLES[launcher].values(), values, strict=True))
    info = RankInfo.from_env(environ)
    assert numbers(info) == (5, 1, 8, 4)
    with pytest.raises(RankError, match=f"{launcher} does not say; set MASTER_ADDR and MASTER_PORT"):
        info.meeting_variables(environ)
    meeting = info.meeting_variables({**environ, "MASTER_ADDR": "n1", "MASTER_PORT": "29500"})
    assert meeting == {"RANK": "5", "WORLD_SIZE": "8"}
