"""A cluster that tunes, on Slurm: each job is a node that measures on its GPUs and compiles on its cores.

Run it where jobs may be submitted and dask-jobqueue is installed: ``python3 examples/service/slurm.py 4`` asks for four
nodes and prints the address for ``tune.py --scheduler``. It holds the scheduler, so it runs until it is interrupted.
"""

import signal
import socket
import sys
from pathlib import Path

from dask_jobqueue import SLURMCluster

GPUS, CORES = 8, 64  # of a node; every job has a whole one
ROOT = Path(__file__).resolve().parent.parent.parent  # on a file system that the nodes have, too
ADDRESS = f"tcp://{socket.gethostname()}:8786"

if __name__ == "__main__":
    cluster = SLURMCluster(
        cores=CORES,
        processes=1,
        nanny=False,
        memory="128GB",
        walltime="04:00:00",
        job_extra_directives=[f"--gres=gpu:{GPUS}"],
        # Beside the job's own worker, which compiles: the GPUs' workers.
        job_script_prologue=[
            f"export PYTHONPATH={ROOT}:{ROOT}/build/tune/python",
            f"{sys.executable} {ROOT}/tune/serve.py {ADDRESS} --jobs 0 &",
        ],
        worker_extra_args=["--resources", f"CPU={CORES}"],
        scheduler_options={"host": socket.gethostname(), "port": 8786},
    )
    cluster.scale(jobs=int(sys.argv[1]))
    print(ADDRESS, flush=True)
    signal.pause()
