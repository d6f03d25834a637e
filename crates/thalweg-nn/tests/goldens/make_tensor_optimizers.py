"""Writes tensor_optimizers.txt: what PyTorch's Muon, Adafactor and LBFGS give, for ../it/tensor_optimizers.rs. Needs PyTorch and no GPU:

    python3 make_tensor_optimizers.py > tensor_optimizers.txt

Lines: `start N SHAPE : numbers`, `gradient STEP N : numbers`, then cases: `case OPTIMIZER DTYPE option=number ...` with lines `param N`
and `state N NAME` behind them, after ten steps; the learning rate is halved after the fifth. LBFGS minimizes Rosenbrock's function of the
first two parameters from `start`, in f64; its lines have the losses and counts of each call as well. The options are ours and those of
PyTorch's samples (OptimizerInfo).
"""
import torch
from torch.testing._internal.common_optimizers import optim_db

torch.manual_seed(20261124)
STEPS, SHAPES = 10, [(4,), (2, 3), (5, 3), (2, 3, 4), ()]
starts = [torch.randn(s, dtype=torch.float64).mul(1000).round().div(1000) for s in SHAPES]
gradients = [[torch.randn(s, dtype=torch.float64).mul(1000).round().div(1000) for s in SHAPES] for _ in range(STEPS)]

def numbers(t): return [repr(v) for v in t.detach().double().flatten().tolist()]
def name(dtype): return str(dtype).removeprefix("torch.")

for i, p in enumerate(starts): print("start", i, ",".join(map(str, p.shape)) or "-", ":", *numbers(p))
for step, list in enumerate(gradients):
    for i, g in enumerate(list): print("gradient", step, i, ":", *numbers(g))

OURS = {
    "Muon": [dict(lr=0.1), dict(lr=0.1, nesterov=False, weight_decay=0.0), dict(lr=0.05, adjust_lr_fn="match_rms_adamw", momentum=0.5)],
    "Adafactor": [dict(lr=0.1), dict(lr=0.5, eps=(1e-3, 0.5), weight_decay=0.2, maximize=True), dict(lr=1.0, d=2.0, beta2_decay=-0.5)],
    "LBFGS": [dict(max_iter=4), dict(max_iter=4, line_search_fn="strong_wolfe"), dict(max_iter=6, lr=0.5, history_size=2, line_search_fn="strong_wolfe"),
              dict(lr=0.001, max_iter=8, max_eval=5), dict(lr=3.0, max_iter=5, history_size=3, line_search_fn="strong_wolfe", tolerance_change=1e-3)],
}

def options_of(kwargs):
    """Returns the options under the names of this library's options."""
    found = {}
    for key, value in kwargs.items():
        if key == "eps" and isinstance(value, tuple): found |= {"eps.0": value[0], "eps.1": value[1]}
        elif key == "ns_coefficients": found |= {f"ns{i}": v for i, v in enumerate(value)}
        elif key == "adjust_lr_fn": found["match_rms"] = 1
        elif key == "line_search_fn": found["strong_wolfe"] = 1
        else: found[key] = float(value)
    return [f"{k}={float(v)!r}" for k, v in found.items()]

def by_gradients(optimizer, kwargs, dtype):
    chosen = [i for i, s in enumerate(SHAPES) if optimizer != "Muon" or len(s) == 2]
    parameters = {i: starts[i].to(dtype).clone().requires_grad_() for i in chosen}
    made = getattr(torch.optim, optimizer)([*parameters.values()], **kwargs)
    print("case", optimizer, name(dtype), *options_of(kwargs))
    for step in range(STEPS):
        if step == 5: made.param_groups[0]["lr"] = made.param_groups[0]["lr"] / 2
        for i, p in parameters.items(): p.grad = gradients[step][i].to(dtype)
        made.step()
    for i, p in parameters.items():
        print("param", i, ":", *numbers(p))
        for key, value in made.state[p].items(): print("state", i, key, ":", *numbers(torch.as_tensor(value)))

def by_closure(kwargs):
    parameters = [p.clone().requires_grad_() for p in starts[:2]]
    made = torch.optim.LBFGS(parameters, **kwargs)
    def closure():
        made.zero_grad()
        x = torch.cat([p.flatten() for p in parameters])
        loss = ((1 - x) ** 2).sum() + 100 * ((x[1:] - x[:-1] ** 2) ** 2).sum()
        loss.backward()
        return loss
    print("case LBFGS float64", *options_of(kwargs))
    for step in range(STEPS):
        loss = made.step(closure)
        state = made.state[parameters[0]]
        print("call", step, ":", *numbers(loss), state["func_evals"], state["n_iter"])
    for i, p in enumerate(parameters): print("param", i, ":", *numbers(p))

samples = {info.optim_cls.__name__: [s.kwargs for s in info.optim_inputs_func(device="cpu")] for info in optim_db}
for optimizer, own in OURS.items():
    for kwargs in own + samples[optimizer]:
        if optimizer == "LBFGS": by_closure(kwargs)
        else: by_gradients(optimizer, kwargs, torch.float32)
    if optimizer != "LBFGS": by_gradients(optimizer, own[0], torch.bfloat16)
