#!/bin/sh
# Starts a program as one process per task of a SLURM job, with the variables that torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK,
# LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT. So the same program runs under either.
#
#   sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 srun.sh target/release/examples/ddp
#   salloc --nodes=1 --ntasks=2 --gpus-per-node=2 ./srun.sh target/release/examples/ddp
#
# Ask for GPUs by node, not by task: each process takes the GPU of its LOCAL_RANK among all of its node. MASTER_ADDR and MASTER_PORT that are set
# already stay; OPTIONS_OF_SRUN is handed on.
set -eu

if [ $# -eq 0 ]; then
    echo "usage: sbatch --nodes=N --ntasks-per-node=G --gpus-per-node=G $0 PROGRAM [ARGUMENT]..." >&2
    exit 2
fi
if [ -z "${SLURM_JOB_NODELIST:-}" ]; then
    echo "$0: SLURM_JOB_NODELIST is not set: run this by sbatch, or within salloc" >&2
    exit 2
fi
if [ -z "${MASTER_ADDR:-}" ]; then
    MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
fi
# Jobs that share a node get ports of their own, below those that systems give out.
: "${MASTER_PORT:=$((10000 + ${SLURM_JOB_ID:-0} % 20000))}"
export MASTER_ADDR MASTER_PORT

# A process that fails ends the others: they would wait for it.
# shellcheck disable=SC2016,SC2086
exec srun --kill-on-bad-exit=1 ${OPTIONS_OF_SRUN:-} sh -c '
    export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_RANK="$SLURM_LOCALID" GROUP_RANK="$SLURM_NODEID"
    export LOCAL_WORLD_SIZE="${SLURM_STEP_TASKS_PER_NODE%%[!0-9]*}"
    exec "$@"
' sh "$@"
