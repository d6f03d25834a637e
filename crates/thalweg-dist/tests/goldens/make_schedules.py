"""Writes schedules.csv: the schedules of PyTorch's pipelining, for the tests in ../it/pipeline/goldens.rs. Needs PyTorch and no GPU:

    python3 make_schedules.py > schedules.csv

A line `# SCHEDULE RANKS STAGES_PER_RANK MICROBATCHES` comes before each schedule, and then two tables with a row per rank, an empty line
between them: the computations, and the computations with the messages between ranks that PyTorch's runtime adds.

The order that PyTorch 2.11 prints for the last rank of 1F1B counts its forward passes from 1 on, which its own checks refuse and its step
does not do; here they count from 0 on.
"""
import csv, logging, sys
from torch.distributed.pipelining import schedules as S

logging.disable(logging.CRITICAL)

class Stage(S._PipelineStageBase):
    def __init__(self, index, rank, ranks, stages):
        self.stage_index, self.group_rank, self.group_size, self.num_stages = index, rank, ranks, stages
        self.submod, self.has_backward = None, True
        self.stage_index_to_group_rank = {stage: stage % ranks for stage in range(stages)}

    def _create_grad_recv_info(self, act_send_info): ...
    def _prepare_forward_infra(self, n_microbatches): ...
    def _prepare_backward_infra(self, n_microbatches): ...

def stages(ranks, local, is_v):
    own = lambda chunk: chunk * ranks if not is_v or chunk % 2 == 0 else (chunk + 1) * ranks - 1
    return [Stage(own(chunk), 0, ranks, ranks * local) for chunk in range(local)]

def write(name, ranks, local, microbatches, order, rank_of):
    print("#", name, ranks, local, microbatches)
    compute = {rank: [action for action in row if action is None or action.is_compute_op] for rank, row in order.items()}
    reduced = {rank: S._add_reduce_grad(compute[rank], microbatches) for rank in compute}
    out = csv.writer(sys.stdout, lineterminator="\n")
    for rank in compute:
        out.writerow(action for action in compute[rank] if action is not None)
    print()
    lowered = S._add_send_recv(reduced, lambda stage: rank_of[stage], ranks * local)
    for rank in lowered:
        out.writerow(lowered[rank])

SINGLE = {"GPipe": S.ScheduleGPipe, "1F1B": S.Schedule1F1B}
MULTI = {"LoopedBFS": S.ScheduleLoopedBFS, "Interleaved1F1B": S.ScheduleInterleaved1F1B,
         "InterleavedZeroBubble": S.ScheduleInterleavedZeroBubble, "ZBVZeroBubble": S.ScheduleZBVZeroBubble}
SIZES = {"GPipe": [(2, 1, 3), (4, 1, 8)], "1F1B": [(2, 1, 2), (4, 1, 8), (8, 1, 9)], "LoopedBFS": [(2, 2, 3), (4, 2, 4)],
         "Interleaved1F1B": [(2, 2, 4), (4, 2, 8), (4, 2, 10), (4, 3, 3), (3, 3, 6)],
         "InterleavedZeroBubble": [(2, 1, 4), (4, 1, 8), (4, 2, 8), (3, 2, 8), (4, 1, 3)],
         "ZBVZeroBubble": [(2, 2, 4), (4, 2, 8), (3, 2, 2)]}
for name, sizes in SIZES.items():
    for ranks, local, microbatches in sizes:
        own = stages(ranks, local, name == "ZBVZeroBubble")
        if name in SINGLE:
            order, rank_of = SINGLE[name](own[0], microbatches)._get_pipeline_order(), own[0].stage_index_to_group_rank
            if name == "1F1B":
                order[ranks - 1] = [action._replace(microbatch_index=action.microbatch_index - 1)
                                    if action.computation_type == S.FORWARD else action for action in order[ranks - 1]]
        else:
            schedule = MULTI[name](own, microbatches)
            order, rank_of = schedule.pipeline_order, schedule.stage_index_to_group_rank
        write(name, ranks, local, microbatches, order, rank_of)
