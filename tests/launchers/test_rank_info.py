"""Which rank a process is: exactly as its launcher says, and never a world of one by default."""

import pytest

from launchers.rank_info import FIELDS, LAUNCHER_VARIABLE, TABLES, RankError, RankInfo

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def test_torchruns_variables_are_read():
    info = RankInfo.from_env({**TORCHRUN, "HOME": "/root"})
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (5, 1, 8, 4)
    assert info.launcher == "torchrun"


def test_it_says_which_variable_gave_each_value():
    info = RankInfo.from_env(TORCHRUN)
    assert info.variables == dict(zip(FIELDS, TORCHRUN, strict=True))
    said = "rank 5 (RANK) of 8 (WORLD_SIZE), local rank 1 (LOCAL_RANK) of 4, started by torchrun"
    assert info.describe() == said


def test_launcher_of_ours_is_recorded_by_its_own_name():
    info = RankInfo.from_env({**TORCHRUN, LAUNCHER_VARIABLE: "local"})
    assert info.launcher == "local"
    assert info.describe().endswith("started by local")


@pytest.mark.parametrize(
    ("variables", "job_id"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "17"}, "17"),
        ({"SLURM_JOB_ID": ""}, None),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
    ],
)
def test_number_of_the_job_is_recorded_where_there_is_one(variables, job_id):
    assert RankInfo.from_env({**TORCHRUN, **variables}).job_id == job_id


def test_no_launcher_is_an_error_that_says_what_was_looked_for_and_how_to_start():
    with pytest.raises(RankError) as caught:
        RankInfo.from_env({"HOME": "/root"})
    message = str(caught.value)
    assert "torchrun: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE" in message
    assert "torchrun --nproc-per-node=N -m scaling.worker STUDY" in message


@pytest.mark.parametrize("variable", TORCHRUN)
def test_variable_that_is_missing_is_named_with_those_that_are_there(variable):
    with pytest.raises(RankError, match=f"torchrun set .*, but {variable} is missing"):
        RankInfo.from_env({name: value for name, value in TORCHRUN.items() if name != variable})


@pytest.mark.parametrize("variable", TORCHRUN)
@pytest.mark.parametrize("value", ["", "two", "1.5"])
def test_value_that_is_no_number_is_named(variable, value):
    with pytest.raises(RankError, match=f"{variable} is '{value}'; it must be a number"):
        RankInfo.from_env({**TORCHRUN, variable: value})


def test_negative_value_is_named():
    with pytest.raises(RankError, match="RANK is -1; it must not be negative"):
        RankInfo.from_env({**TORCHRUN, "RANK": "-1"})


@pytest.mark.parametrize(
    "change", [{"RANK": "8"}, {"LOCAL_RANK": "4"}, {"WORLD_SIZE": "0"}, {"LOCAL_WORLD_SIZE": "0"}], ids=str
)
def test_values_that_contradict_one_another_are_an_error(change):
    with pytest.raises(RankError, match="torchrun's variables contradict one another"):
        RankInfo.from_env({**TORCHRUN, **change})


@pytest.mark.parametrize("launcher", TABLES)
def test_every_table_names_every_field(launcher):
    table = TABLES[launcher]
    assert tuple(table) == FIELDS
    assert len(set(table.values())) == len(FIELDS)
    info = RankInfo.from_env(dict(zip(table.values(), ("0", "0", "1", "1"), strict=True)))
    assert (info.rank, info.world_size) == (0, 1)
    assert info.launcher == launcher


SRUN = {
    **{"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
    **{"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]"},
}
FIRST = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def test_sruns_variables_are_read_and_say_where_the_ranks_meet():
    info = RankInfo.from_env(SRUN)
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (5, 1, 8, 4)
    assert (info.launcher, info.table, info.job_id) == ("srun", "srun", "17")
    place = {"MASTER_ADDR": "n1", "MASTER_PORT": "20017"}
    assert info.meeting_variables(SRUN) == {"RANK": "5", "WORLD_SIZE": "8", **place}


def test_torchrun_inside_a_task_of_srun_comes_first_and_sets_where_the_ranks_meet():
    info = RankInfo.from_env({**SRUN, **TORCHRUN})
    assert info.launcher == "torchrun"
    assert info.meeting_variables(SRUN) == {}


def test_batch_script_is_no_task_of_srun():
    batch = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_TASKS_PER_NODE"}
    with pytest.raises(RankError, match="no launcher's variables are set"):
        RankInfo.from_env(batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "4,3"}, "srun put 4,3 tasks on the nodes .*--ntasks-per-node"),
        ({"SLURM_STEP_TASKS_PER_NODE": "many"}, "SLURM_STEP_TASKS_PER_NODE: 'many'"),
        ({"SLURM_LOCALID": "2"}, "task 5 is number 2 of 4 on its node.*--distribution=block"),
        ({"SLURM_PROCID": "9"}, "srun's variables contradict one another"),
        ({"SLURM_NTASKS": "x"}, "SLURM_NTASKS is 'x'"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "SLURM_NTASKS is 8, and SLURM_STEP_NUM_TASKS makes 4 tasks"),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x3)"}, "SLURM_NTASKS is 8, and SLURM_STEP_TASKS_PER_NODE makes 12"),
    ],
    ids=str,
)
def test_tasks_that_do_not_make_equal_nodes_or_numbers_that_do_not_agree_are_an_error(change, message):
    with pytest.raises(RankError, match=message):
        RankInfo.from_env({**SRUN, **change})


def refused(environ, said):
    with pytest.raises(RankError, match=said):
        RankInfo.from_env(environ).meeting_variables(environ)


def test_host_file_that_has_rank_0_elsewhere_is_refused_by_every_rank_with_both_hosts(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("n2\nn2\nn2\nn2\nn1\nn1\nn1\nn1\n")
    for rank in range(8):
        own = {**SRUN, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 4)}
        for order in ({"SLURM_HOSTFILE": str(hosts)}, {"SLURM_ARBITRARY_NODELIST": "n2,n1"}):
            refused({**own, **order}, "would meet on n1, and rank 0 is on n2")


@pytest.mark.parametrize("address", ["n2", "n1-ib0", "head.internal", "10.0.0.7"])
def test_another_name_that_the_user_gives_is_not_compared(address):
    environ = {**FIRST, "SLURMD_NODENAME": "n2", "MASTER_ADDR": address}
    assert RankInfo.from_env(environ).meeting_variables(environ)["MASTER_ADDR"] == address


def test_without_the_host_file_nodes_by_number_tell_it():
    fifth_of_four_a_node = {**SRUN, "SLURM_NODEID": "0"}
    refused(fifth_of_four_a_node, "would meet on n1, and rank 0 is on another one")
    refused({**FIRST, "SLURMD_NODENAME": "n2"}, "would meet on n1, and rank 0 is on n2")
    right = {**SRUN, "SLURM_NODEID": "1", "SLURMD_NODENAME": "n2"}
    assert RankInfo.from_env(right).meeting_variables(right)["MASTER_ADDR"] == "n1"


def test_address_that_the_user_sets_is_taken():
    environ = {**SRUN, "MASTER_ADDR": "10.0.0.1", "SLURM_ARBITRARY_NODELIST": "n2,n1"}
    assert RankInfo.from_env(environ).meeting_variables(environ)["MASTER_ADDR"] == "10.0.0.1"


def test_null_is_no_host():
    refused({**SRUN, "SLURM_JOB_NODELIST": "(null)"}, "no host name in the node list")
    environ = {**SRUN, "SLURM_STEP_NODELIST": "(null)"}
    assert RankInfo.from_env(environ).meeting_variables(environ)["MASTER_ADDR"] == "n1"


OPENMPI = dict(zip(TABLES["openmpi"].values(), ("3", "1", "4", "2"), strict=True))


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
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (5, 1, 8, 4)
    with pytest.raises(RankError, match=f"{launcher} does not say; set MASTER_ADDR and MASTER_PORT"):
        info.meeting_variables(environ)
    meeting = info.meeting_variables({**environ, "MASTER_ADDR": "n1", "MASTER_PORT": "29500"})
    assert meeting == {"RANK": "5", "WORLD_SIZE": "8"}


def test_hosts_of_flux_with_different_numbers_of_ranks_are_refused():
    environ = dict(zip(TABLES["flux"].values(), ("0", "0", "5", "2"), strict=True))
    with pytest.raises(RankError, match=r"5 on 2 hosts .*--tasks-per-node"):
        RankInfo.from_env(environ)


def test_other_launchers_are_told_to_name_their_variables():
    with pytest.raises(RankError, match="of another launcher name the variables in SCALING_RANK_VARIABLES"):
        RankInfo.from_env({"SOME_RANK": "0"})


def test_place_to_meet_that_cannot_be_told_is_an_error():
    info = RankInfo.from_env(SRUN)
    with pytest.raises(RankError, match=r"where do the workers meet.*set MASTER_ADDR and MASTER_PORT"):
        info.meeting_variables({"SLURM_JOB_ID": "17"})


OF_MPI = ("{}_RANK", "{}_LOCAL_RANK", "{}_SIZE", "{}_LOCAL_SIZE")
MPI_AND_HOROVOD = {
    "openmpi": [name.format("OMPI_COMM_WORLD") for name in OF_MPI],
    "mpich": ["PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"],
    "horovodrun": [name.format("HOROVOD") for name in OF_MPI],
}
MPI_AND_HOROVOD = {
    name: dict(zip(names, ("5", "1", "8", "4"), strict=True)) for name, names in MPI_AND_HOROVOD.items()
}


@pytest.mark.parametrize("launcher", MPI_AND_HOROVOD)
def test_variables_of_mpi_and_horovod_are_read(launcher):
    info = RankInfo.from_env(MPI_AND_HOROVOD[launcher])
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (5, 1, 8, 4)
    assert info.launcher == info.table == launcher
    named = RankInfo.from_env({**MPI_AND_HOROVOD[launcher], LAUNCHER_VARIABLE: "mine"})
    assert (named.launcher, named.table) == ("mine", launcher)


@pytest.mark.parametrize("launcher", MPI_AND_HOROVOD)
def test_torchrun_under_another_launcher_is_torchruns(launcher):
    assert RankInfo.from_env({**MPI_AND_HOROVOD[launcher], **TORCHRUN}).table == "torchrun"


def test_what_sruns_pmi2_sets_does_not_make_it_mpich():
    with pytest.raises(RankError, match="no launcher's variables are set"):
        RankInfo.from_env({"PMI_RANK": "0", "PMI_SIZE": "2"})
