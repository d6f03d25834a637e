"""Operators of `torchaudio` (`torch.ops.torchaudio`). Filters whose results depend on former results are computed by the host. The
transducer's loss and alignments are left out."""

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


_library, _about = Library("torchaudio", "DEF"), Library("_torchaudio", "DEF")
for _schema in _SCHEMAS:
    _library.define(_schema)
for _function in (_lfilter_core_loop, _overdrive_core_loop):
    _library.impl(_function.__name__, _function)
for _schema, _answer in (("cuda_version() -> int?", None), ("is_align_available() -> bool", False)):
    _about.impl(_about.define(_schema), lambda answer=_answer: answer)
