"""The only reader and writer of results.

    <folder>/
      study.yaml  environment.json  topology.yaml       written before the first step
      runs/<cell>/<repeat>/rank<r>.jsonl  run.json       raw samples of every rank; state and summary
      runs/<cell>/<repeat>/checkpoint-rank<r>.pt         while a training is under way, and .before.pt
      launches/<number>.log  <number>.json               what a launch's workers printed; where its time went
      summary.csv  report.html  figures/                 made from the above, at any time again
      transfers.csv  probed.yaml                         likewise, where there are transfer cells
      sheets/<aggregator>.json                           fidelity sheets, by `scaling verify --save-to`
      predictions.json                                   simulated before a launch that measures it

Every file is replaced in one piece (written to a temporary file, synced, renamed) or appended to by one
process. Raw samples are never edited; those of a run that was cut off move to
`runs/<cell>/<repeat>/attempt-<n>/`.

A study that is over may be archived (`scaling export DIR --archive`): `samples.csv.gz` and `runs.jsonl.gz`
then stand for runs/ (archive.py says how), and no run is written before `--unarchive`. Samples that were
compressed where they are (`rank<r>.jsonl.gz`) are read as well.
"""

from scaling.store.code_changes import CODE_CHANGES, CodeChange, changes_since
from scaling.store.folder import ResultsFolder, Snapshot
from scaling.store.records import SCHEMA_VERSION, RunRecord, now

__all__ = [
    "CODE_CHANGES",
    "SCHEMA_VERSION",
    "CodeChange",
    "ResultsFolder",
    "RunRecord",
    "Snapshot",
    "changes_since",
    "now",
]
