"""Averages of weights over steps (`torch.optim.swa_utils`)."""

import copy
import itertools
import math

from .. import _core
from ..nn.layers import _BatchNorm
from ..nn.module import Module
from ._schedule import LRScheduler, _check_optimizer, _format_param, _update_param_group_val, _warn_get_lr_called_within_step  # noqa: F401
from .optimizer import recording


def _check_decay(decay):
    if decay < 0.0 or decay > 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def _averages(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def get_ema_avg_fn(decay=0.999):
    """Returns a function that moves an average towards a value, by a fixed fraction."""
    _check_decay(decay)

    def ema_update(ema_param, current_param, num_averaged):
        with recording(False):
            return decay * ema_param + (1 - decay) * current_param
    return ema_update


def get_swa_avg_fn():
    """Returns a function that adds a value to the mean of a number of values."""
    def swa_update(averaged_param, current_param, num_averaged):
        with recording(False):
            return averaged_param + (current_param - averaged_param) / (num_averaged + 1)
    return swa_update


def _of_lists(average, weight):
    """Returns a function that averages lists in place: floats by the `weight` of a number of values, other dtypes by
    `average`."""
    def update(averaged, current, number):
        with recording(False):
            for one, other in zip(averaged, current):
                if _averages(one):
                    one.lerp_(other, weight(number))
                else:
                    one.copy_(average(one, other, number))
    return update


def get_ema_multi_avg_fn(decay=0.999):
    """Returns a function that moves averages towards values in place, by a fixed fraction."""
    return _of_lists(get_ema_avg_fn(decay), lambda number: 1 - decay)


def get_swa_multi_avg_fn():
    """Returns a function that adds values to the means of a number of values, in place."""
    return _of_lists(get_swa_avg_fn(), lambda number: 1 / (float(number) + 1))


class AveragedModel(Module):
    """A copy of a model, whose parameters are averages of the model's parameters over time."""

    def __init__(self, model, device=None, avg_fn=None, multi_avg_fn=None, use_buffers=False):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", _core.tensor(0, dtype=_core.int64, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args, **kwargs):
        """Calls the copy."""
        return self.module(*args, **kwargs)

    def _tensors(self, model):
        return list(itertools.chain(model.parameters(), model.buffers()) if self.use_buffers else model.parameters())

    def update_parameters(self, model):
        """Adds the model's current parameters to the averages. The first ones are copied."""
        own = [tensor.detach() for tensor in self._tensors(self.module)]
        current = [other.detach().to(tensor.device) for tensor, other in zip(own, self._tensors(model))]
        with recording(False):
            if self.n_averaged == 0:
                for tensor, other in zip(own, current):
                    tensor.copy_(other)
            elif self.avg_fn is not None:
                for tensor, other in zip(own, current):
                    tensor.copy_(self.avg_fn(tensor, other, self.n_averaged.to(tensor.device)))
            elif own:
                by_kind = {}
                for pair in zip(own, current):
                    by_kind.setdefault((str(pair[0].device), pair[0].dtype), []).append(pair)
                update = self.multi_avg_fn or get_swa_multi_avg_fn()
                for pairs in by_kind.values():
                    ours, theirs = (list(tensors) for tensors in zip(*pairs))
                    update(ours, theirs, self.n_averaged.to(ours[0].device))
            if not self.use_buffers:
                for buffer, other in zip(self.module.buffers(), model.buffers()):
                    buffer.detach().copy_(other.detach().to(buffer.device))
            self.n_averaged.add_(1)


def update_bn(loader, model, device=None):
    """Recomputes the statistics of batch norms, over the batches of a loader."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta, was_training = [norm.momentum for norm in norms], model.training
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    try:
        with recording(False):
            for batch in loader:
                batch = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(batch if device is None else batch.to(device))
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        model.train(was_training)


class SWALR(LRScheduler):
    """A rate that moves to a fixed one in a number of steps, from its current value."""

    def __init__(self, optimizer, swa_lr, anneal_epochs=10, anneal_strategy="cos", last_epoch=-1):
        _check_optimizer(optimizer)
        rates = _format_param("swa_lr", optimizer, swa_lr)
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must by one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        for rate, group in zip(rates, optimizer.param_groups):
            group["swa_lr"] = rate
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _part(self, step):
        """Returns the fraction of the way that is completed after a number of steps."""
        t = max(0, min(1, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self._anneal_strategy == "cos" else t

    def get_lr(self):
        """Returns the rates at this step, from the starting rates that are implied by the current ones."""
        _warn_get_lr_called_within_step(self)
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._part(step - 1), self._part(step)
        rates = []
        for group in self.optimizer.param_groups:
            rate, last = group["lr"], group["swa_lr"]
            first = last if before == 1 else (rate - before * last) / (1 - before)
            rates.append(last * now + first * (1 - now))
        return rates
