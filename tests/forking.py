"""One process that imports once and forks for everything it is asked to run: importing takes longer than running."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

HANGS = 600  # seconds after which a program is given up

LOOP = """
import json, os, sys, traceback
{preparation}

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{{order['folder']}}/{{name}}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        code = 70
        try:
            code = act(order)
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forks:
    """Runs ``act(order)``, which the preparation defines, in a fork for each order; it returns the exit code."""

    def __init__(self, preparation: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP.format(preparation=preparation)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, **order: Any) -> subprocess.CompletedProcess[str]:
        """What became of an order; the fork writes what it says to the folder."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        hangs = threading.Timer(HANGS, self.process.kill)
        hangs.start()
        print(json.dumps({**order, "folder": str(folder)}), file=self.process.stdin, flush=True)
        code = self.process.stdout.readline().strip()
        hangs.cancel()
        assert code, f"gave no answer for {HANGS} s, or ended"
        said = ((folder / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess([], int(code), *said)

    def end(self) -> None:
        self.process.communicate()
