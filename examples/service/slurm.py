"""A cluster that tunes, on Slurm: each job is a node that measures on its GPUs and compiles on its cores.

Run it where jobs may be submitted and dask-jobqueue is installed, once ``tune/schedule.py --new-key`` has made a key in
the home folder that the nodes share: ``python3 examples/service/slurm.py 4`` prints the address for ``tune.py
--scheduler``. It asks for nodes while runs have a use for them, four at most, and gives them back afterwards. It holds
the scheduler, so it runs until it is interrupted.
"""

import signal
import socket
import sys
from pathlib import Path

from dask_jobqueue import SLURMCluster

ROOT = Path(__file__).resolve().parent.parent.parent  # on a file system that the nodes have, too
sys.path.insert(0, str(ROOT))

from aotriton.tune.workers.elastic import as_wanted  # noqa: E402
from aotriton.tune.workers.key import key_file, security  # noqa: E402

GPUS, CORES = 8, 64  # of a node; every job has a whole one
ADDRESS = f"tls://{socket.gethostname()}:8786"

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
            f"export PYTHONPATH={ROOT}:{ROOT}/build/tune/python AOTRITON_TUNING_KEY={key_file()}",
            f"{sys.executable} {ROOT}/tune/serve.py {ADDRESS} --jobs 0 &",
        ],
        worker_extra_args=["--resources", f"CPU={CORES}"],
        security=security(ADDRESS),
        protocol="tls://",
        scheduler_options={"host": socket.gethostname(), "port": 8786, "dashboard_address": "127.0.0.1:8787"},
    )
    # A node comes as soon as it is wanted, and goes after a minute without work.
    cluster.adapt(Adaptive=as_wanted(GPUS), minimum=0, maximum=int(sys.argv[1]), interval="10s", wait_count=6)
    print(ADDRESS, flush=True)
    signal.pause()
