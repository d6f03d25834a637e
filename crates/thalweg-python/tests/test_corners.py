"""One-line programs at the corner cases of operators: results, gradients and exception classes are PyTorch's
(`corners/pytorch.json`)."""

import json
import math
import pathlib
import sys

import thalweg

FOLDER = pathlib.Path(__file__).parent / "corners"


def loaded():
    """Returns the module of the programs, and PyTorch's answers."""
    sys.path.insert(0, str(FOLDER))
    try:
        import probes
    finally:
        sys.path.pop(0)
    return probes, json.loads((FOLDER / "pytorch.json").read_text())


def answer(probes, line):
    """Returns the outcome of a line in this package. Errors on the device are reported when its work is waited for."""
    found = probes.run(thalweg, line, "sim")
    try:
        thalweg.cuda.synchronize("sim")
    except IndexError as error:
        return {"raises": "IndexError", "text": str(error)}
    return found


def class_of(wanted):
    """Returns the name of the exception class that PyTorch raises."""
    return wanted["raises"] and wanted["raises"].removeprefix("_")


def same(found, wanted):
    """Returns whether results are equal, up to rounding."""
    if isinstance(wanted, (list, tuple)):
        return isinstance(found, (list, tuple)) and len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, float) and isinstance(found, float):
        return (math.isnan(found) and math.isnan(wanted)) or math.isclose(found, wanted, rel_tol=1e-5, abs_tol=1e-6)
    return found == wanted


def test_results_at_corners_are_those_of_pytorch():
    probes, answers = loaded()
    differ = []
    for line in probes.lines("values.txt"):
        found, wanted = answer(probes, line), answers[line]
        if found["raises"] != class_of(wanted) or not same(found.get("result"), wanted.get("result")):
            differ.append(f"{line}\n    gives {found}\n    not {wanted}")
    assert not differ, "\n".join(differ)


def reasons():
    """Returns the lines of `corners/differences.txt`: a program, and the reason why its exception differs from PyTorch's."""
    lines = [line for line in (FOLDER / "differences.txt").read_text().splitlines() if line]
    return dict(line.split("  # ", 1) for line in lines)


def test_refusals_have_the_classes_of_pytorch():
    probes, answers = loaded()
    known, differ = reasons(), []
    for line in probes.lines("refusals.txt"):
        found, wanted = answer(probes, line), class_of(answers[line])
        if found["raises"] != wanted and line not in known:
            differ.append(f"{line}\n    raises {found['raises']} ({found.get('text')}), not {wanted}")
    assert not differ, f"{len(differ)} differ:\n" + "\n".join(differ)


def test_messages_speak_of_python():
    """No message has the line or a name of Rust's interface."""
    probes, _ = loaded()
    words = (".rs:", "`to_dtype`", "BackwardOptions", "enabled: false", "to_vec(", "`to_device`", "Option<", "usize", "Error::")
    found = {line: answer(probes, line).get("text") or "" for line in probes.lines("refusals.txt")}
    bad = {line: text for line, text in found.items() if any(word in text for word in words)}
    assert not bad, "\n".join(f"{line}: {text}" for line, text in bad.items())
