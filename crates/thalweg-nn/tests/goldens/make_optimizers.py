"""Writes optimizers.txt: what PyTorch's optimizers, learning-rate schedulers and gradient clipping give, for the tests in
../it/optimizer_goldens.rs. Needs PyTorch and no GPU:

    python3 make_optimizers.py > optimizers.txt

First come two parameters and their gradients for ten steps, in each dtype. Then a case a block, of option sets of ours and of
PyTorch's samples (OptimizerInfo): a line `case OPTIMIZER DTYPE FUSED option=number ...`, where the learning rate is halved after the
fifth step, then lines `param` and `state NAME` with what is there in the end. Then a line a schedule with its options and
learning rates, and blocks for clipping. Numbers of float32 are the hexadecimal digits of their bits, those of bfloat16 the upper
half of them.
"""
import sys, torch
from torch.optim import lr_scheduler as lrs
from torch.testing._internal.common_optimizers import optim_db

torch.manual_seed(20261122)
STEPS, SHAPES = 10, [(4,), (2, 3)]

def digits(t):
    t = t.detach().flatten()
    ints, width = (torch.int16, 4) if t.dtype == torch.bfloat16 else (torch.int32, 8)
    t = t if t.dtype == torch.bfloat16 else t.float()
    return [format(v & ((1 << width * 4) - 1), f"0{width}x") for v in t.view(ints).tolist()]

def name(dtype): return str(dtype).removeprefix("torch.")
def pairs(options): return [f"{k}={float(v)!r}" for k, v in options.items()]

starts = [torch.randn(s) for s in SHAPES]
gradients = [[torch.randn(s) for s in SHAPES] for _ in range(STEPS)]
gradients[3][0][1] = 0.0
for dtype in (torch.float32, torch.bfloat16):
    for i, p in enumerate(starts): print("start", name(dtype), i, ":", *digits(p.to(dtype)))
    for step in gradients:
        for i, g in enumerate(step): print("gradient", name(dtype), i, ":", *digits(g.to(dtype)))

# Optimizers with options by PyTorch's names; of a pair, by its place.
ADAM = [{}, {"lr": 0.05, "weight_decay": 0.1, "betas.0": 0.8, "betas.1": 0.9}, {"amsgrad": 1, "betas.1": 0.5, "lr": 0.1},
        {"maximize": 1, "eps": 1e-3}]
CASES = {
    "Adam": [*ADAM, {"weight_decay": 0.2, "decoupled_weight_decay": 1, "maximize": 1}],
    "AdamW": ADAM,
    "SGD": [{}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9, "nesterov": 1, "weight_decay": 0.1},
            {"lr": 0.1, "momentum": 0.5, "dampening": 0.25, "maximize": 1}],
    "Adagrad": [{}, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}, {"maximize": 1}],
    "NAdam": [{}, {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.1}, {"weight_decay": 0.2, "decoupled_weight_decay": 1, "maximize": 1}],
    "RAdam": [{}, {"lr": 0.05, "weight_decay": 0.1, "betas.1": 0.9}, {"weight_decay": 0.2, "decoupled_weight_decay": 1, "maximize": 1}],
    "RMSprop": [{}, {"centered": 1, "weight_decay": 0.1}, {"momentum": 0.9, "alpha": 0.8, "eps": 1e-3}, {"momentum": 0.5, "centered": 1, "maximize": 1}],
    "Adamax": [{}, {"lr": 0.05, "weight_decay": 0.1, "betas.1": 0.5}, {"maximize": 1}],
    "Adadelta": [{}, {"lr": 0.5, "rho": 0.5, "weight_decay": 0.1}, {"maximize": 1}],
    "ASGD": [{}, {"lr": 0.1, "lambd": 0.01, "alpha": 0.5, "t0": 3, "weight_decay": 0.1}, {"maximize": 1}],
    "SparseAdam": [{}, {"lr": 0.05, "betas.0": 0.8, "betas.1": 0.9}, {"maximize": 1, "eps": 1e-3}],
    "Rprop": [{}, {"lr": 0.1, "etas.0": 0.25, "etas.1": 1.5, "step_sizes.0": 0.05, "step_sizes.1": 0.2}, {"maximize": 1}],
}
FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
FLAGS = {"amsgrad", "maximize", "nesterov", "decoupled_weight_decay", "centered"}

def case(optimizer, options, dtype, fused, rate_of_tensor=False):
    kind = getattr(torch.optim, optimizer)
    parameters = [p.to(dtype).clone().requires_grad_() for p in starts]
    own = {}
    for key, value in options.items():
        target, is_part, place = key.partition(".")
        if is_part:
            pair = list(own.get(target, kind(parameters).defaults[target]))
            pair[int(place)] = value
            own[target] = tuple(pair)
        else:
            own[key] = bool(value) if key in FLAGS else value
    if rate_of_tensor: own["lr"] = torch.tensor(own["lr"])
    is_sparse = optimizer == "SparseAdam"
    made = kind(parameters, **own, **({} if is_sparse else dict(fused=True) if fused else dict(foreach=False)))
    print("case", optimizer, name(dtype), int(fused), *pairs(options))
    for step in range(STEPS):
        if step == 5: made.param_groups[0]["lr"] /= 2
        for p, g in zip(parameters, gradients[step]): p.grad = g.to(dtype).to_sparse() if is_sparse else g.to(dtype)
        made.step()
    for i, p in enumerate(parameters):
        print("param", i, ":", *digits(p))
        for key, value in made.state[p].items():
            if value is None: continue
            value = torch.as_tensor(value)
            print("state", i, key, ":", *digits(value.to(dtype) if value.dim() else value.float()))

for optimizer, option_sets in CASES.items():
    for options in option_sets:
        for dtype in (torch.float32, torch.bfloat16):
            if dtype == torch.bfloat16 and options.get("maximize"): continue
            case(optimizer, options, dtype, optimizer in FUSED)

# PyTorch's own samples (OptimizerInfo). Its implementations (one by one, foreach, fused) agree with each other; ours is one.
for info in optim_db:
    optimizer = info.optim_cls.__name__
    if optimizer not in CASES: continue
    for sample in info.optim_inputs_func(device="cpu"):
        options = {}
        for key, value in sample.kwargs.items():
            options.update({f"{key}.{place}": part for place, part in enumerate(value)} if isinstance(value, tuple) else {key: float(value)})
        case(optimizer, options, torch.float32, False, torch.is_tensor(sample.kwargs.get("lr")))

# Schedules: the learning rates of the first epochs, for a group that starts at 0.5.
def optimizer(): return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
def rates(made, scheduler, epochs=24, metrics=None):
    found = []
    for epoch in range(epochs):
        found.append(made.param_groups[0]["lr"])
        made.step()
        scheduler.step(metrics[epoch]) if metrics else scheduler.step()
    return found
def schedule(kind, options, epochs=24, **own):
    made = optimizer()
    scheduler = getattr(lrs, kind)(made, **{**options, **own})
    print("schedule", kind, *pairs(options), ":", *map(repr, rates(made, scheduler, epochs)))
schedule("StepLR", dict(step_size=5, gamma=0.3))
schedule("MultiStepLR", {}, milestones=[3, 3, 11, 17], gamma=0.5)
schedule("ExponentialLR", dict(gamma=0.9))
schedule("CosineAnnealingLR", dict(T_max=7, eta_min=0.05))
schedule("CosineAnnealingWarmRestarts", dict(T_0=4, T_mult=2, eta_min=0.05), T_0=4, T_mult=2)
schedule("CosineAnnealingWarmRestarts", dict(T_0=5, T_mult=1, eta_min=0.0), T_0=5, T_mult=1)
schedule("LinearLR", dict(start_factor=0.25, end_factor=0.75, total_iters=9))
schedule("ConstantLR", dict(factor=0.25, total_iters=6))
schedule("PolynomialLR", dict(total_iters=12, power=2.0))
for own in (dict(), dict(three_phase=True), dict(anneal_strategy="linear", pct_start=0.45, div_factor=10.0, final_div_factor=100.0)):
    flags = dict(max_lr=2.0, total_steps=24, three_phase=own.get("three_phase", False), linear="anneal_strategy" in own,
                 pct_start=own.get("pct_start", 0.3), div_factor=own.get("div_factor", 25.0), final_div_factor=own.get("final_div_factor", 1e4))
    made = optimizer()
    scheduler = lrs.OneCycleLR(made, max_lr=2.0, total_steps=24, cycle_momentum=False, **own)
    print("schedule OneCycleLR", *pairs(flags), ":", *map(repr, rates(made, scheduler, 23)))
made = optimizer()
print("schedule LambdaLR :", *map(repr, rates(made, lrs.LambdaLR(made, lambda epoch: 1 / (1 + epoch)))))
made = optimizer()
parts = [lrs.LinearLR(made, start_factor=0.1, total_iters=4), lrs.ExponentialLR(made, gamma=0.8), lrs.ConstantLR(made, factor=0.5, total_iters=3)]
print("schedule SequentialLR :", *map(repr, rates(made, lrs.SequentialLR(made, parts, milestones=[4, 12]))))
for number, (mode, gamma) in enumerate([("triangular", 1.0), ("triangular2", 1.0), ("exp_range", 0.9)]):
    options = dict(base_lr=0.1, max_lr=0.9, step_size_up=3, step_size_down=5)
    made = optimizer()
    scheduler = lrs.CyclicLR(made, mode=mode, gamma=gamma, cycle_momentum=False, **options)
    print("schedule CyclicLR", *pairs({**options, "mode": number, "gamma": gamma}), ":", *map(repr, rates(made, scheduler)))
made = optimizer()
print("schedule MultiplicativeLR :", *map(repr, rates(made, lrs.MultiplicativeLR(made, lambda epoch: 1 - 1 / (2 + epoch)))))
made = optimizer()
parts = [lrs.LinearLR(made, start_factor=0.1, total_iters=4), lrs.ExponentialLR(made, gamma=0.8), lrs.StepLR(made, step_size=7, gamma=0.5)]
print("schedule ChainedScheduler :", *map(repr, rates(made, lrs.ChainedScheduler(parts, optimizer=made))))
metrics = [1.0, 0.9, 0.95, 0.9, 0.9, 0.89999, 0.8, 0.81, 0.82, 0.83, 0.84, 0.7, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75, float("nan"), 0.1, 0.2, 0.3, 0.4]
print("metrics :", *map(repr, metrics))
for options in (dict(factor=0.5, patience=2, maximize=0, absolute=0, cooldown=0, min_lr=0.0, threshold=1e-4),
                dict(factor=0.5, patience=1, maximize=0, absolute=1, cooldown=2, min_lr=0.1, threshold=0.05),
                dict(factor=0.25, patience=2, maximize=1, absolute=0, cooldown=1, min_lr=0.0, threshold=0.01),
                dict(factor=0.25, patience=3, maximize=1, absolute=1, cooldown=0, min_lr=0.0, threshold=0.01)):
    made = optimizer()
    own = {k: options[k] for k in ("factor", "patience", "cooldown", "min_lr", "threshold")}
    scheduler = lrs.ReduceLROnPlateau(made, mode="max" if options["maximize"] else "min",
                                      threshold_mode="abs" if options["absolute"] else "rel", **own)
    print("schedule ReduceLROnPlateau", *pairs(options), ":", *map(repr, rates(made, scheduler, 24, metrics)))

# Clipping of the first step's gradients.
for max_norm, norm_type in ((1.0, 2.0), (100.0, 2.0), (0.5, 1.0), (0.5, float("inf")), (1.5, 3.0)):
    parameters = [p.clone().requires_grad_() for p in starts]
    for p, g in zip(parameters, gradients[0]): p.grad = g.clone()
    total = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
    print("clip", max_norm, norm_type, ":", *digits(total))
    for p in parameters: print("clipped :", *digits(p.grad))
parameters = [p.clone().requires_grad_() for p in starts]
for p, g in zip(parameters, gradients[0]): p.grad = g.clone()
torch.nn.utils.clip_grad_value_(parameters, 0.5)
print("clip value 0.5 :")
for p in parameters: print("clipped :", *digits(p.grad))
print(f"# torch {torch.__version__}", file=sys.stderr)
