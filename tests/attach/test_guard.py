"""Files from before a run, and what its processes write, remove and read in their place."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from scaling.attach.files import take_files
from scaling.attach.launch import INJECT
from tests.waiting import LIMIT_S

PREAMBLE = "import fcntl, json, os, pathlib, shutil, subprocess, sys, time\n"


class _Folder:
    """A folder with older files, and a run in it.

    Attributes:
        work: with the files.
        modules: that the run's processes find.
    """

    def __init__(self, folder):
        self.work, self._out = folder / "work", folder / "out"
        self.work.mkdir()
        self._out.mkdir()
        self.modules = folder / "modules"
        self.modules.mkdir()
        self._began_s: float | None = None

    def has(self, **texts):
        """Writes files that are older than the run."""
        for name, text in texts.items():
            (self.work / name).write_text(text)

    def start(self, code):
        """A process of the run."""
        if self._began_s is None:
            time.sleep(0.05)  # the file system's clock is coarse
            self._began_s = time.time()
        order = {"out": str(self._out), "began_s": self._began_s, "arm": "baseline"}
        order |= {"warmup": 1, "steps": 5, "deadline_s": LIMIT_S}
        path = os.pathsep.join((str(INJECT), str(self.modules)))
        return subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + code], cwd=self.work,
            env={**os.environ, "PYTHONPATH": path, "SCALING_ATTACH": json.dumps(order)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, code):
        """What a process of the run prints."""
        process = self.start(code)
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, said
        return said.strip()

    def texts(self):
        """All files that are there."""
        return {
            str(path.relative_to(self.work)): path.read_text()
            for path in self.work.rglob("*")
            if path.is_file() and not path.is_symlink()
        }


@pytest.fixture
def folder(tmp_path):
    return _Folder(tmp_path)


READS = {
    "open": "open('meta').read()",
    "pathlib": "pathlib.Path('meta').read_text()",
    "os.open": "os.read(os.open('meta', os.O_RDONLY), 99).decode()",
    "dir_fd": "os.read(os.open('meta', os.O_RDONLY, dir_fd=os.open('.', os.O_RDONLY)), 99).decode()",
    "bytes": "open(b'meta').read()",
    "link": "(os.symlink('meta', 'link'), open('link').read())[1]",
    "numpy": "(lambda numpy: bytes(numpy.memmap('meta', mode='r')).decode())(__import__('numpy'))",
    "copy": "(shutil.copy2('meta', 'copied'), open('copied').read())[1]",
    "subprocess": "subprocess.run([sys.executable, '-c', 'print(open(\"meta\").read(), end=\"\")'], "
    "capture_output=True, text=True).stdout",
}


@pytest.mark.parametrize("read", READS)
def test_what_was_written_in_place_of_an_older_file_is_read_in_every_process(folder, read):
    folder.has(meta="old")
    writes = "with open('meta', 'w') as file: file.write('new')\n"
    assert folder.run(f"print({READS[read]})") == "old"
    (folder.work / "link").unlink(missing_ok=True)
    assert folder.run(f"{writes}print({READS[read]}, os.path.getsize('meta'))") == "new 3"
    (folder.work / "link").unlink(missing_ok=True)
    assert (folder.run(f"print({READS[read]})"), folder.texts()["meta"]) == ("new", "old")


WRITES = {
    "append": ("open('meta', 'a').write('+')", "old+"),
    "update": ("open('meta', 'r+').write('+')", "+ld"),
    "truncate": ("os.truncate('meta', 2)", "ol"),
    "rename": ("(open('new', 'w').write('new'), os.replace('new', 'meta'))", "new"),
    "copy": ("(open('new', 'w').write('new'), shutil.copy('new', 'meta'), os.remove('new'))", "new"),
    "copy and copy": (
     "(open('new', 'w').write('new'), [shutil.copy2('new', 'meta') for _ in '12'], os.remove('new'))", "new"),
    "through a new link": ("(os.symlink('meta', 'l'), open('l', 'w').write('new'), os.remove('l'))", "new"),
    "through a hard link": ("(os.link('meta', 'l'), open('l', 'w').write('new'), os.remove('l'))", "new"),
    "after a new mode": ("(os.chmod('meta', 384), os.utime('meta'), open('meta', 'a').write('+'))", "old+"),
    "after it is removed": ("(os.remove('meta'), open('meta', 'a').write('new'))", "new"),
    "as a new file after it is removed": ("(os.remove('meta'), open('meta', 'x').write('new'))", "new"),
    "after it is renamed":
     ("(os.rename('meta', 'm'), open('meta', 'a').write(open('m').read()), os.remove('m'))", "old"),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_an_older_file_stays_and_what_would_be_in_it_is_read(folder, write):
    folder.has(meta="old")
    call, expected = WRITES[write]
    assert (folder.run(f"{call}\nprint(open('meta').read())"), folder.texts()) == (expected, {"meta": "old"})


def test_errors_of_missing_and_of_existing_files_stay_and_guarded_functions_can_be_pickled(folder):
    folder.has(meta="old")
    for make in ("open('meta', 'x')", "os.mkdir('meta')", "os.symlink('a', 'meta')", "os.open('meta', 194)"):
        assert folder.run(f"try: {make}\nexcept FileExistsError: print('raised')") == "raised"
    for call in ("shutil.copyfile('a', 'b')", "os.link('a', 'b')", "os.path.getsize('a')", "open('a')"):
        assert folder.run(f"try: {call}\nexcept FileNotFoundError: print('raised')") == "raised"
    code = """
import pickle
for function in (os.remove, os.open, os.path.getsize, shutil.copy, shutil.rmtree):
    assert pickle.loads(pickle.dumps(function)) is function
assert shutil.rmtree.avoids_symlink_attacks
"""
    assert folder.run(code) == ""


def test_ranks_that_append_at_once_have_one_copy(folder):
    folder.has(log="old\n")
    appends = "print()\nsys.stdin.read()\nfor _ in range(50):\n    open('log', 'a').write('{}\\n')"
    ranks = [folder.start(appends.format(rank)) for rank in range(4)]
    for rank in ranks:
        rank.stdout.readline()
    for rank in ranks:
        rank.stdin.close()
    for rank in ranks:
        assert rank.wait(LIMIT_S) == 0, rank.stdout.read()
    lines = folder.run("print(open('log').read())").split("\n")
    assert (lines[0], sorted(lines[1:])) == ("old", sorted(f"{rank}" for rank in range(4) for _ in range(50)))
    assert folder.texts() == {"log": "old\n"}


def test_a_lock_on_an_older_file_excludes_other_ranks(folder):
    folder.has(lock="")
    opens = "file = os.open('lock', os.O_RDWR | os.O_CREAT | os.O_TRUNC)\n"
    holds = folder.start(
        opens
        + "fcntl.flock(file, fcntl.LOCK_EX)\nprint('held', flush=True)\nsys.stdin.read()\ntime.sleep(600)"
    )
    assert holds.stdout.readline() == "held\n"
    tries = "try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError: print('excluded')"
    assert folder.run(opens + tries) == "excluded"
    holds.kill()
    holds.wait()
    assert folder.run(opens + tries) == ""


def test_what_the_run_has_removed_can_be_made_again(folder):
    (folder.work / "results" / "plots").mkdir(parents=True)
    (folder.work / "results" / "plots" / "a").write_text("mine")
    (folder.work / "latest").symlink_to("results")
    folder.has(old="mine")
    first = """
open('results/new', 'w').close()  # the folder is changed by the run
shutil.rmtree('results')
os.makedirs('results/plots')
open('results/plots/a', 'x').write('new')
os.unlink('latest')
os.symlink('elsewhere', 'latest')
pathlib.Path('latest').unlink()
pathlib.Path('latest').symlink_to('elsewhere')
os.symlink('elsewhere', 'link')
os.replace('link', 'latest')
os.symlink('elsewhere', 'link')  # it has been renamed
os.remove('link')
print(open('results/plots/a').read())
"""
    assert folder.run(first) == "new"
    assert (
        folder.run("print(os.listdir('results'), os.readlink('latest'))") == "['plots'] elsewhere"
    )  # another rank
    assert folder.texts() == {"results/plots/a": "mine", "old": "mine"}
    assert os.readlink(folder.work / "latest") == "results"


def test_a_folder_emptied_by_hand_and_renamed_ones_stay(folder):
    for name in ("emptied", "renamed"):
        (folder.work / name).mkdir()
        (folder.work / name / "x").write_text("mine")
    code = """
for name in ('emptied', 'renamed'):
    open(f'{name}/new', 'w').close()
for name in os.listdir('emptied'):
    os.remove(f'emptied/{name}')
os.rmdir('emptied')
os.mkdir('emptied')
os.rename('renamed', 'renamed.1')
os.mkdir('renamed')
print(*(f'{one} {sorted(os.listdir(one))}' for one in ('emptied', 'renamed', 'renamed.1')))
"""
    assert folder.run(code) == "emptied [] renamed [] renamed.1 ['new', 'x']"
    assert folder.texts() == {
        "emptied/x": "mine",
        "renamed/x": "mine",
        "renamed.1/new": "",
        "renamed.1/x": "mine",
    }


def test_what_the_run_has_removed_is_not_there_in_any_process(folder):
    folder.has(**{f"ckpt_{at}": "mine" for at in range(3)})
    (folder.work / "last").symlink_to("ckpt_0")
    code = """
import glob
while len(glob.glob('ckpt_*')) > 1:
    os.remove(min(glob.glob('ckpt_*'), key=os.path.getmtime))
os.replace(os.symlink('ckpt_2', 'link') or 'link', 'last')
open('ckpt_2', 'w').write('new one')
"""
    seen = """
print(sorted(os.listdir()), sorted(one.name for one in os.scandir()), end=' ')
print(os.path.exists('ckpt_0'), os.access('ckpt_1', os.R_OK))
print(open('last').read(), os.readlink('last'), pathlib.Path('ckpt_2').stat().st_size)
try: open('ckpt_0')
except FileNotFoundError as error: print(error)
"""
    expected = [
        "['ckpt_2', 'last'] ['ckpt_2', 'last'] False False",
        "new one ckpt_2 7",
        "[Errno 2] No such file or directory: 'ckpt_0'",
    ]
    assert folder.run(code + seen).splitlines() == folder.run(seen).splitlines() == expected
    assert folder.texts() == {f"ckpt_{at}": "mine" for at in range(3)}


def test_what_is_done_through_a_link_that_leads_elsewhere_now_is_done_there(folder):
    (folder.work / "ckpt_1").mkdir()
    (folder.work / "ckpt_1" / "step").write_text("1")
    (folder.work / "last").symlink_to("ckpt_1")
    code = """
os.mkdir('ckpt_2')
open('ckpt_2/step', 'w').write('2')
os.unlink('last')
os.symlink('ckpt_2', 'last')
open('last/step', 'w').write('3')
open('last/more', 'x').write('more')
os.mkdir('last/folder')
os.symlink('more', 'last/link')
os.rename('last/more', 'last/most')
print(open('ckpt_2/step').read(), sorted(os.listdir('ckpt_2')), os.listdir() == os.listdir(None))
os.remove('last/step')
print(os.access('last/step', os.R_OK), os.access('last', os.R_OK), os.path.exists('ckpt_2/step'))
shutil.rmtree('ckpt_2')
print(os.access('last', os.R_OK))
"""
    assert folder.run(code).splitlines() == [
        "3 ['folder', 'link', 'most', 'step'] True", "False True False", "False",
    ]  # fmt: skip
    assert folder.texts() == {"ckpt_1/step": "1"}


def test_an_older_file_that_is_too_large_to_copy_is_not_renamed_either(folder):
    with open(folder.work / "large", "wb") as file:
        file.truncate(257 * 2**20)
    code = """
try: os.rename('large', 'larger')
except PermissionError as error: print(os.listdir(), error)
"""
    assert re.fullmatch(r"\['large'\] it renames .*large \(269484032 bytes\); .*", folder.run(code))


def test_folders_that_links_lead_to_and_new_ones_that_are_renamed_end_in_the_runs_folder(folder, tmp_path):
    (folder.work / "ckpt_1").mkdir()
    (folder.work / "ckpt_1" / "step").write_text("1")
    (folder.work / "last").symlink_to("ckpt_1")
    code = """
os.mkdir('new')
open('new/step', 'w').write('2')
os.rename('new', 'ckpt_2')
os.unlink('last')
os.symlink('ckpt_2', 'last')
shutil.rmtree('ckpt_1')
print(open('last/step').read(), os.listdir('last'), os.path.basename(os.path.realpath('last')))
"""
    assert folder.run(code) == "2 ['step'] ckpt_2"
    take_files(tmp_path / "out", folder.work)
    assert folder.texts() == {"ckpt_1/step": "1"}
    assert (tmp_path / "out" / "files" / "ckpt_2" / "step").read_text() == "2"


SAVES = """
from safetensors.torch import load_file, save_file
import torch
inside = sys.modules['_scaling_attach_inside']
agent = inside.start()
agent.is_armed = True
agent.done['update'] = 1
save_file({'x': torch.ones(3)}, 'older')
save_file({'x': torch.ones(3)}, 'ckpt')
print(load_file('older')['x'].sum().item(), load_file('ckpt')['x'].sum().item())
torch.save(3, 'saved')
torch.save({}, 'ckpt.pt')
for copy in (shutil.copyfile, shutil.copy, shutil.copy2):
    copy('ckpt.pt', 'best.pt')
print(torch.load('saved'), torch.load('best.pt'))
"""


@pytest.mark.processes  # where the frameworks are, which bring safetensors
def test_checkpoints_are_saved_and_read_back_and_older_ones_stay(folder):
    pytest.importorskip("safetensors")
    folder.has(older="mine", saved="mine")
    assert folder.run(SAVES).splitlines() == ["3.0 3.0", "3 {}"]
    expected = {"older": "mine", "saved": "mine"}
    assert {name: (folder.work / name).read_text() for name in ("older", "saved")} == expected


MLFLOW = """
import os
import re
uri = os.environ.get("MLFLOW_TRACKING_URI")
def set_tracking_uri(new):
    global uri
    uri = new
class MlflowClient:
    def __init__(self, tracking_uri=None, registry_uri=None):
        self.uri = tracking_uri or uri
def log_metric(name, value):
    print(name)
"""
HUB = """
class HfApi:
    def upload_file(self, path):
        print("sent")
upload_file = HfApi().upload_file
"""
WANDB = """
class Run:
    def log(self, values):
        print(values)
def init():
    global log
    log = Run().log
    return Run()
"""


def test_mlflow_stays_in_the_folder_of_the_run(folder, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///run")
    (folder.modules / "mlflow.py").write_text(MLFLOW)
    code = """
import mlflow
mlflow.set_tracking_uri('http://server')
print(mlflow.uri, mlflow.MlflowClient(tracking_uri='http://server').uri)
"""
    assert folder.run(code) == "file:///run file:///run"


def test_uploads_are_left_out_and_calls_of_trackers_counted(folder):
    (folder.modules / "huggingface_hub").mkdir()
    (folder.modules / "huggingface_hub" / "__init__.py").write_text("from .hf_api import HfApi, upload_file")
    (folder.modules / "boto3" / "s3").mkdir(parents=True)
    boto3 = "def upload_fileobj(*_): raise OSError"
    files = {"huggingface_hub/hf_api": HUB, "wandb": WANDB, "mlflow": MLFLOW, "boto3/s3/inject": boto3}
    for name, text in files.items():
        (folder.modules / f"{name}.py").write_text(text)
    code = """
from boto3.s3.inject import upload_fileobj
from huggingface_hub import HfApi, upload_file
import mlflow, wandb
for send in (upload_file, HfApi().upload_file, upload_fileobj):
    send('a')
wandb.init().log(1)
wandb.log(2)
mlflow.log_metric('loss', 3)
print(dict(sys.modules['_scaling_attach_inside.libraries'].LEFT_OUT))
"""
    assert folder.run(code).splitlines() == ["1", "2", "loss", "{'uploads': 3, 'wandb': 2, 'mlflow': 1}"]
