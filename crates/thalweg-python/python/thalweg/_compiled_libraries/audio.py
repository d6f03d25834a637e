"""Operators of `torchaudio` (`torch.ops.torchaudio`). Filters whose results depend on former results, and alignments, are computed by the
host."""

from .. import _core
from ..library import Library

_SCHEMAS = (
    "_lfilter_core_loop(Tensor input_signal_windows, Tensor a_coeff_flipped, Tensor(a!) padded_output_waveform) -> Tensor(a!)",
    "_overdrive_core_loop(Tensor waveform, Tensor temp, Tensor(a!) last_in, Tensor(b!) last_out, Tensor(c!) output_waveform) -> "
    "(Tensor(a!), Tensor(b!), Tensor(c!))",
    "rnnt_loss_forward(Tensor logits, Tensor targets, Tensor logit_lengths, Tensor target_lengths, int blank, float clamp, bool "
    "fused_log_softmax) -> (Tensor, Tensor)",
    "forced_align(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank) -> (Tensor, Tensor)",
)


def _lfilter_core_loop(input_signal_windows, a_coeff_flipped, padded_output_waveform):
    """Writes the results of a recursive filter: each is an input less the former results times their coefficients."""
    order = a_coeff_flipped.shape[1] - 1
    former = [row[:order] for row in a_coeff_flipped.tolist()]
    results = []
    for signal in input_signal_windows.tolist():
        for samples, coefficients in zip(signal, former):
            out = [0.0] * order
            for place, sample in enumerate(samples):
                for number, coefficient in enumerate(coefficients, place):
                    sample -= out[number] * coefficient
                out.append(sample)
            results.append(out)
    padded_output_waveform.copy_(_core.tensor(results, dtype=padded_output_waveform.dtype).view(padded_output_waveform.shape))
    return padded_output_waveform


def _overdrive_core_loop(waveform, temp, last_in, last_out, output_waveform):
    """Writes a distorted signal: half of it, and three quarters of its filtered changes."""
    filtered, ends = [], []
    for samples, before, former in zip(temp.tolist(), last_in.tolist(), last_out.tolist()):
        row = []
        for sample in samples:
            former, before = sample - before + 0.995 * former, sample
            row.append(former)
        filtered.append(row)
        ends.append((before, former))
    output_waveform.copy_(waveform * 0.5 + _core.tensor(filtered, dtype=temp.dtype, device=temp.device).view(temp.shape) * 0.75)
    for state, values in zip((last_in, last_out), zip(*ends)):
        state.copy_(_core.tensor(values, dtype=state.dtype))
    return last_in, last_out, output_waveform


def rnnt_loss_forward(logits, targets, logit_lengths, target_lengths, blank, clamp, fused_log_softmax):
    """Returns the losses of a transducer, each less the logarithm of the probability of all ways to a target, and their gradient. A
    way goes through a grid: a blank is a step in time, a label is a step in the target."""
    former = _core._set_grad_enabled(True)
    try:
        given = logits.detach().float().requires_grad_()
        scores = given.log_softmax(-1) if fused_log_softmax else given
        blanks, count = scores[..., blank], logits.shape[0]
        labels = scores[:, :, :-1].gather(-1, targets.long()[:, None, :, None].expand(-1, scores.shape[1], -1, 1)).squeeze(-1)
        # The logarithms of the labels' probabilities up to each place of a row: sums along a row are those of terms relative to them.
        along = _core.cat([labels.new_zeros((*labels.shape[:2], 1)), labels.cumsum(-1)], -1)
        rows = [along[:, 0]]
        for time in range(1, logits.shape[1]):
            rows.append((rows[-1] + blanks[:, time - 1] - along[:, time]).logcumsumexp(-1) + along[:, time])
        each, last, end = _core.arange(count, device=logits.device), logit_lengths.long() - 1, target_lengths.long()
        costs = -(_core.stack(rows, 1)[each, last, end] + blanks[each, last, end])
        gradient, = _gradients(costs.sum(), [given])
    finally:
        _core._set_grad_enabled(former)
    gradient = gradient.clamp(-clamp, clamp) if clamp > 0 else gradient
    return costs.detach().to(logits.dtype), gradient.to(logits.dtype)


def _gradients(output, inputs):
    from ..autograd import grad
    return grad(output, inputs)


def forced_align(log_probs, targets, input_lengths, target_lengths, blank):
    """Returns the most probable sequence of labels and blanks that makes each target, and the scores."""
    if log_probs.shape[0] != 1:
        raise RuntimeError(f"The batch dimension for log_probs must be 1 at the current version. Found {log_probs.shape[0]}.")
    labels, scores = targets[0].tolist(), log_probs[0].tolist()
    repeats = sum(one == other for one, other in zip(labels, labels[1:]))
    if len(scores) < len(labels) + repeats:
        raise RuntimeError(f"targets length is too long for CTC. Found targets length: {len(labels)}, log_probs length: {len(scores)}, and number of repeats: "
                           f"{repeats}")
    states = [blank, *(state for label in labels for state in (label, blank))]
    best, steps = [scores[0][state] if place < 2 else float("-inf") for place, state in enumerate(states)], []
    for row in scores[1:]:
        now, back = [], []
        for place, state in enumerate(states):
            stay, one = best[place], best[place - 1] if place else float("-inf")
            two = best[place - 2] if place % 2 and place > 1 and state != states[place - 2] else float("-inf")
            step = 2 if two > one and two > stay else 1 if one > stay and one > two else 0
            back.append(step)
            now.append((two if step == 2 else one if step == 1 else stay) + row[state])
        best = now
        steps.append(back)
    place = len(states) - 1 if len(states) == 1 or best[-1] > best[-2] else len(states) - 2
    path = [states[place]]
    for back in reversed(steps):
        place -= back[place]
        path.append(states[place])
    return _core.tensor([path[::-1]], dtype=targets.dtype, device=targets.device), log_probs


_library, _about = Library("torchaudio", "DEF"), Library("_torchaudio", "DEF")
for _schema in _SCHEMAS:
    _library.define(_schema)
for _function in (_lfilter_core_loop, _overdrive_core_loop, rnnt_loss_forward, forced_align):
    _library.impl(_function.__name__, _function)
for _schema, _answer in (("cuda_version() -> int?", None), ("is_align_available() -> bool", True), ("is_rnnt_available() -> bool", True)):
    _about.impl(_about.define(_schema), lambda answer=_answer: answer)
