"""A rank's part of a dataset (`torch.utils.data.distributed`)."""

import math

from ... import _core, distributed
from .sampler import Sampler


class DistributedSampler(Sampler):
    """The samples of one of several ranks, in an order that all ranks draw identically from a seed and the epoch's number."""

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False):
        self.dataset, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, shuffle, seed, drop_last, 0
        self.num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
        self.rank = distributed.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"Invalid rank {self.rank}, rank should be in the interval [0, {self.num_replicas - 1}]")
        count = len(dataset)
        self.num_samples = count // self.num_replicas if drop_last else math.ceil(count / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self):
        order = list(range(len(self.dataset)))
        if self.shuffle:
            generator = _core.Generator().manual_seed(self.seed + self.epoch)
            order = _core.randperm(len(order), generator=generator, device=generator.device).tolist()
        # An incomplete last round is filled up from the beginning.
        while order and len(order) < self.total_size:
            order += order[:self.total_size - len(order)]
        return iter(order[self.rank:self.total_size:self.num_replicas])

    def __len__(self):
        return self.num_samples

    def set_epoch(self, epoch):
        """Sets the epoch, so that the next order is a different one."""
        self.epoch = epoch
