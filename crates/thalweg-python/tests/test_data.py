"""`utils.data`: datasets, the order in which samples are taken, and batches."""

import collections
import os
import random
import signal
import time

import thalweg as th
from support import raises
from thalweg.utils import data
from thalweg.utils.data import dataloader
from thalweg.utils.data.dataloader import DataLoader


class Squares(data.Dataset):
    def __init__(self, count=7):
        self.count = count

    def __getitem__(self, index):
        return th.tensor(index * index), index

    def __len__(self):
        return self.count


class Counted(data.IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return self.count


def test_batches():
    loader = DataLoader(Squares(), batch_size=3, pin_memory=True)
    assert [[part.tolist() for part in batch] for batch in loader] == [[[0, 1, 4], [0, 1, 2]], [[9, 16, 25], [3, 4, 5]], [[36], [6]]]
    assert len(loader) == 3 and len(DataLoader(Squares(), 3, drop_last=True)) == 2 == len(list(DataLoader(Squares(), 3, drop_last=True)))
    assert [sample[1] for sample in DataLoader(Squares(3), batch_size=None)] == [0, 1, 2]
    assert [batch[1].tolist() for batch in DataLoader(Squares(), batch_sampler=[[5, 1], [0]])] == [[5, 1], [0]]
    loader = DataLoader(Counted(5), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]] and len(loader) == 3
    pair = collections.namedtuple("pair", "x y")
    batch = next(iter(DataLoader([pair(1.0, "a"), pair(2.0, "b")], batch_size=2)))
    assert batch.x.dtype is th.float64 and batch.x.tolist() == [1, 2] and batch.y == ("a", "b")
    assert data.get_worker_info() is None


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


class Seen(data.Dataset):
    """Samples that show who made them, and that fail on request."""

    def __init__(self, tensors, failing=-1, killed=-1, ending=None):
        self.tensors, self.failing, self.killed = tensors, failing, killed
        self.ending = ending or _kill

    def __getitem__(self, index):
        if index == self.failing:
            raise KeyError(f"sample {index}")
        if index == self.killed:
            self.ending()
        info = data.get_worker_info()
        return self.tensors[index] * 2, info.id, info.seed, random.randrange(1 << 30), th.randint(1 << 30, ()).item()

    def __len__(self):
        return len(self.tensors)


class Divided(data.IterableDataset):
    def __iter__(self):
        info = data.get_worker_info()
        return iter(range(info.id, 7, info.num_workers))


def seeded(worker_id):
    th.manual_seed(7)


def test_processes_make_batches():
    tensors = th.arange(8.0).view(8, 1)
    for context in ("fork", "spawn"):
        loader = DataLoader(Seen(tensors), batch_size=2, num_workers=2, generator=th.Generator().manual_seed(5), multiprocessing_context=context)
        batches = list(loader)
        assert th.cat([batch[0] for batch in batches]).flatten().tolist() == [2.0 * place for place in range(8)]
        assert [batch[1].tolist() for batch in batches] == [[0, 0], [1, 1], [0, 0], [1, 1]]
        seeds = {batch[1][0].item(): batch[2][0].item() for batch in batches}
        assert seeds[1] == seeds[0] + 1 and len({draw for batch in batches for draw in batch[3].tolist()}) == 8
        again = list(DataLoader(Seen(tensors), batch_size=2, num_workers=2, generator=th.Generator().manual_seed(5), multiprocessing_context="fork"))
        assert [batch[4].tolist() for batch in again] == [batch[4].tolist() for batch in batches]
    draws = [batch[4].tolist() for batch in DataLoader(Seen(tensors), batch_size=2, num_workers=2, worker_init_fn=seeded)]
    assert draws[0] == draws[1] != draws[2] == draws[3]
    assert sorted(sample for batch in DataLoader(Divided(), batch_size=2, num_workers=2) for sample in batch.tolist()) == list(range(7))
    loader = DataLoader(Seen(tensors), batch_size=4, num_workers=1, persistent_workers=True, pin_memory=True)
    first = [batch[0] for batch in loader]
    process, = loader._iterator._workers
    assert th.equal(first[1], [batch[0] for batch in loader][1]) and loader._iterator._workers == [process] and first[0].is_pinned()
    loader._iterator._shutdown_workers()


def test_failures_of_processes_name_the_batch():
    tensors = th.arange(6.0)
    loader = iter(DataLoader(Seen(tensors, failing=3), batch_size=2, num_workers=1))
    next(loader)
    with raises(KeyError, "in DataLoader worker process 0. It was fetching the batch of indices [2, 3]"):
        next(loader)
    assert next(loader)[0].tolist() == [8.0, 10.0]
    with raises(RuntimeError, "is killed by signal: Killed. It was worker 0 while it fetched the batch of indices [4, 5]."):
        list(DataLoader(Seen(tensors, killed=4), batch_size=2, num_workers=1))


def _with_a_child():
    """Is killed while a process that holds the worker's files lives on for a while."""
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def test_every_end_of_a_worker_is_an_error():
    ends = [(os.abort, "is killed by signal: Aborted. It was worker 1 while it fetched the batch of indices [2]."),
            (lambda: os._exit(3), "exited unexpectedly with exit code 3. It was worker 1 while it fetched the batch of indices [2]."),
            (_with_a_child, "is killed by signal: Killed. It was worker 1 while it fetched the batch of indices [2].")]
    for ending, text in ends:
        dataset = Seen(th.arange(4.0), killed=2, ending=ending)
        with raises(RuntimeError, text):
            list(DataLoader(dataset, batch_sampler=[[0], [2], [1], [3]], num_workers=2, multiprocessing_context="fork"))


class Pairs(dict):
    """A mapping that is not a plain one."""


def test_collections_keep_their_kind():
    collated = data.default_collate([Pairs(a=1, b="x"), Pairs(a=2, b="y")])
    assert type(collated) is Pairs and collated["a"].tolist() == [1, 2] and collated["b"] == ["x", "y"]
    assert type(data.default_convert(Pairs(a=1))) is Pairs and data.default_convert(range(2)) == [0, 1]
    assert [part.tolist() for part in data.default_collate([range(2), range(2)])] == [[0, 0], [1, 1]]
    assert data.default_collate([True, False]).dtype is th.bool
    of_tensors = {th.Tensor: lambda batch, *, collate_fn_map: len(batch)}
    assert data._utils.collate.collate([(th.ones(1), th.ones(2))] * 3, collate_fn_map=of_tensors) == [3, 3]


def test_samples_at_once():
    class Rows(data.Dataset):
        def __getitems__(self, numbers):
            return [10 * number for number in numbers]

        def __len__(self):
            return 4
    both = data.StackDataset(Rows(), [1, 2, 3, 4])
    assert both.__getitems__([2, 0]) == [(20, 3), (0, 1)]
    assert data.StackDataset(rows=Rows(), numbers=range(4)).__getitems__([3]) == [{"rows": 30, "numbers": 3}]
    assert data.Subset(both, [3, 1]).__getitems__([1]) == [(10, 2)]
    assert [batch.tolist() for batch in DataLoader(data.Subset(Rows(), [3, 1]), batch_size=2)] == [[30, 10]]


def test_a_pass_goes_on_after_an_error():
    class Broken(Squares):
        def __getitem__(self, number):
            if number == 1:
                raise KeyError(number)
            return number
    batches = iter(DataLoader(Broken(3)))
    assert next(batches).tolist() == [0]
    with raises(KeyError):
        next(batches)
    assert next(batches).tolist() == [2] and next(batches, None) is None


def test_orders_follow_the_seed():
    orders = []
    for seed in (1, 1, 2):
        th.manual_seed(seed)
        orders.append(next(iter(DataLoader(range(50), batch_size=50, shuffle=True))).tolist())
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == list(range(50))


def test_samplers():
    # A program may ask for far more samples than it takes.
    endless = data.RandomSampler(Squares(), replacement=True, num_samples=10**10)
    assert len(endless) == 10**10 and all(number < 7 for number, _ in zip(endless, range(100)))
    assert len(list(data.RandomSampler(Squares(), num_samples=20))) == 20
    assert sorted(list(data.RandomSampler(Squares(), num_samples=14))[:7]) == list(range(7))
    assert sorted(data.SubsetRandomSampler([3, 5, 9])) == [3, 5, 9]
    assert set(data.WeightedRandomSampler([0.0, 1.0, 0.0], 5)) == {1}
    assert list(data.BatchSampler(data.SequentialSampler(range(5)), 2, False)) == [[0, 1], [2, 3], [4]]
    parts = [list(data.DistributedSampler(range(5), num_replicas=2, rank=rank, shuffle=False)) for rank in (0, 1)]
    assert parts == [[0, 2, 4], [1, 3, 0]]
    drawn = [data.DistributedSampler(range(6), num_replicas=2, rank=rank) for rank in (0, 1)]
    assert sorted([*drawn[0], *drawn[1]]) == list(range(6))
    first = list(drawn[0])
    drawn[0].set_epoch(5)
    assert list(drawn[0]) != first


def test_datasets():
    chained = Squares(2) + Squares(3)
    assert [chained[place][1] for place in (0, 1, 2, 4, -1)] == [0, 1, 0, 2, 2] and len(chained) == 5
    assert list(Counted(2) + Counted(1)) == [0, 1, 0]
    with raises(AssertionError, "Size mismatch between tensors"):
        data.TensorDataset(th.ones(2), th.ones(3))
    assert data.StackDataset(x=range(3), y="abc")[1] == {"x": 1, "y": "b"}
    left, right = data.random_split(range(10), [0.75, 0.25], generator=th.Generator().manual_seed(3))
    assert (len(left), len(right)) == (8, 2) and sorted([*left, *right]) == list(range(10))
    assert [len(part) for part in data.random_split(range(10), [4, 6])] == [4, 6]


def test_wrong_arguments():
    with raises(ValueError, "mutually exclusive with shuffle"):
        DataLoader(Squares(), shuffle=True, sampler=[1])
    with raises(ValueError, "order of its own"):
        DataLoader(Counted(3), shuffle=True)
    with raises(ValueError, "num_samples should be a positive integer"):
        data.RandomSampler(Squares(), num_samples=0)
    with raises(ValueError, "Sum of input lengths"):
        data.random_split(range(10), [4, 5])
    with raises(ValueError, "should not exceed dataset length"):
        (Squares(2) + Squares(3))[-6]
    with raises(IndexError, "none of number 5"):
        (Squares(2) + Squares(3))[5]
    for options, part in (({"timeout": -1}, "timeout"), ({"prefetch_factor": 2}, "prefetch_factor"), ({"persistent_workers": True}, "num_workers > 0"),
                          ({"multiprocessing_context": "fork"}, "num_workers > 0"),
                          ({"num_workers": 1, "multiprocessing_context": "bad"}, "valid start method")):
        with raises(ValueError, part):
            DataLoader(Squares(), **options)
    loader = DataLoader(Squares())
    with raises(ValueError, "batch_size attribute should not be set"):
        loader.batch_size = 3
    with raises(AssertionError, "only supports IterableDataset"):
        list(data.ChainDataset([Counted(3), Squares()]))
    with raises(NotImplementedError, "__getitems__"):
        type("Half", (data.Subset,), {"__getitem__": lambda self, number: 0})(Squares(), [1])
    with raises(NotImplementedError, "IterDataPipe is left out"):
        data.IterDataPipe()


class Large(data.Dataset):
    """Samples that take the threads of the simulated GPU."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return (th.ones(1 << 20) * index + 1).sum()


def test_forked_workers_compute_large_samples_after_their_parent():
    assert Large()[1].item() == 1 << 21
    for batch, wanted in zip(DataLoader(Large(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=120), ([1, 2], [3, 4])):
        assert batch.tolist() == [part * (1 << 20) for part in wanted]


def test_what_a_program_draws_later_does_not_depend_on_its_loaders():
    drawn = []
    for count, shuffle, workers in ((3, False, 0), (7, False, 1), (3, True, 0), (7, True, 0)):
        th.manual_seed(4)
        list(DataLoader(Squares(count), shuffle=shuffle, num_workers=workers))
        drawn.append(th.rand([4]).tolist())
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


def test_loaders_of_libraries_have_passes_of_their_own():
    class Pass(dataloader._SingleProcessDataLoaderIter):
        def __init__(self, loader):
            super().__init__(loader)
            self.taken = 0

        def _reset(self, loader, first_iter=False):
            super()._reset(loader, first_iter)
            self.taken = 0

        def _next_index(self):
            index = super()._next_index()
            self.taken += 1
            return index
    one = Pass(DataLoader(Squares(5), batch_size=2))
    assert [len(batch[0]) for batch in one] == [2, 2, 1] and one.taken == 3 and one._timeout == 0
    one._reset(None)
    assert one.taken == 0 and next(one)[0].tolist() == [0, 1]
    rows = dataloader._DatasetKind.create_fetcher(dataloader._DatasetKind.Iterable, Counted(3), True, list, False)
    assert len(rows.fetch([0, 1])) == 2 and not rows.ended and len(rows.fetch([0, 1])) == 1 and rows.ended and rows.dataset_iter is not rows.dataset
