"""Learning rate schedules, single and chained: the program's only import of a tensor library is `torch`."""

import torch
from torch.optim import lr_scheduler as schedules


def made():
    """Yields functions that create a schedule for an optimizer."""
    yield lambda o: schedules.ConstantLR(o, 0.1, 3)
    yield lambda o: schedules.LinearLR(o, 0.2, 0.9, 4)
    yield lambda o: schedules.PolynomialLR(o, 6, 2.0)
    yield lambda o: schedules.CosineAnnealingLR(o, 4, 0.001)
    yield lambda o: schedules.CosineAnnealingWarmRestarts(o, 3, 2)
    yield lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=3, step_size_down=5)
    yield lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=2, mode="triangular2")
    yield lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=2, mode="exp_range", gamma=0.9)
    yield lambda o: schedules.OneCycleLR(o, 0.4, 14)
    yield lambda o: schedules.OneCycleLR(o, [0.3], epochs=4, steps_per_epoch=4, pct_start=0.4, anneal_strategy="linear", three_phase=True)
    yield lambda o: schedules.OneCycleLR(o, 0.3, 13, cycle_momentum=False, final_div_factor=10.0)
    yield lambda o: schedules.ChainedScheduler([schedules.ConstantLR(o, 0.1, 2), schedules.ExponentialLR(o, 0.9)])
    yield lambda o: schedules.ChainedScheduler([schedules.LinearLR(o, 0.5, total_iters=3), schedules.CosineAnnealingLR(o, 5)])
    yield lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o, 0.5, total_iters=3), schedules.ExponentialLR(o, 0.9)], [4])


def train():
    """Returns, for each schedule, the rate and momentum of each step of two optimizers."""
    found = []
    for make in made():
        for kind, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {})):
            p = torch.nn.Parameter(torch.ones(2))
            optimizer = kind([p], lr=0.05, **options)
            schedule = make(optimizer)
            numbers = []
            for _ in range(12):
                p.grad = torch.ones(2)
                optimizer.step()
                schedule.step()
                group = optimizer.param_groups[0]
                assert schedule.get_last_lr() == [group["lr"]]
                numbers += [group["lr"], group["betas"][0] if "betas" in group else group["momentum"]]
            found.append(numbers)
    return found


if __name__ == "__main__":
    print(train())
