"""Times of short pieces of code (`torch.utils.benchmark`). Each measurement waits for the device at its beginning and its end."""

import dataclasses
import math
import statistics
import time

from .. import cuda
from .._left_out import attributes

__all__ = ["Compare", "Measurement", "Timer"]
_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def _shown(seconds):
    """Returns a time in the largest unit of which it has at least one."""
    unit, scale = next(((unit, scale) for unit, scale in _UNITS if seconds >= scale), _UNITS[-1])
    return f"{seconds / scale:.2f} {unit}"


@dataclasses.dataclass
class Measurement:
    """The times of a piece of code: seconds of several runs of `number_per_run` calls each."""

    number_per_run: int
    raw_times: list
    label: str = ""
    sub_label: str = ""
    description: str = ""
    env: str = ""
    num_threads: int = 1
    stmt: str = ""
    metadata: dict = dataclasses.field(default_factory=dict)

    @property
    def times(self):
        """The seconds of a call, by run."""
        return [seconds / self.number_per_run for seconds in self.raw_times]

    @property
    def median(self):
        """The median of the seconds of a call."""
        return statistics.median(self.times)

    @property
    def mean(self):
        """The mean of the seconds of a call."""
        return statistics.fmean(self.times)

    @property
    def iqr(self):
        """The seconds between the first and the last quarter of runs."""
        if len(self.times) < 2:
            return 0.0
        first, _, last = statistics.quantiles(self.times, n=4, method="inclusive")
        return last - first

    @property
    def significant_figures(self):
        """The number of digits that runs have in common."""
        if len(self.times) < 3 or not self.iqr:
            return 1 if len(self.times) < 3 else 4
        return max(1, min(4, math.floor(math.log10(self.median / self.iqr)) + 1)) if self.median else 1

    @property
    def has_warnings(self):
        """Whether the runs differ by more than a tenth."""
        return bool(self.median) and self.iqr / self.median > 0.1

    @property
    def title(self):
        """The label, or the code."""
        return ": ".join(part for part in (self.label or self.stmt, self.sub_label) if part)

    def __repr__(self):
        runs = f"{len(self.times)} measurement{'s' * (len(self.times) > 1)}, {self.number_per_run} runs per measurement, {self.num_threads} thread"
        lines = [f"{type(self).__module__}.{type(self).__name__} object", self.title, *([self.description] if self.description else [])]
        if len(self.times) > 1:
            return "\n".join([*lines, f"  Median: {_shown(self.median)}", f"  IQR:    {_shown(self.iqr)}", f"  {runs}"])
        return "\n".join([*lines, f"  {_shown(self.mean)}", f"  {runs}"])

    def __str__(self):
        return repr(self)


class Timer:
    """Times a piece of code, with the names in `globals`, after `setup`."""

    def __init__(self, stmt="pass", setup="pass", global_setup="", timer=time.perf_counter, globals=None, label=None, sub_label=None, description=None,
                 env=None, num_threads=1, language="python"):
        if language not in ("python", "Python", "py"):
            raise NotImplementedError("Timer(language='c++') is left out: code of C++ is not compiled")
        import textwrap
        self._namespace, self._timer, self._num_threads = dict(globals or {}), timer, num_threads
        self._shown = {"label": label or "", "sub_label": sub_label or "", "description": description or "", "env": env or "", "num_threads": num_threads,
                       "stmt": textwrap.dedent(stmt).strip()}
        self._namespace.setdefault("torch", __import__(__name__.partition(".")[0]))
        exec(textwrap.dedent(setup), self._namespace)
        self._code = compile(f"for _ in range(__number__):\n{textwrap.indent(self._shown['stmt'], '    ')}\n", "<timeit>", "exec")

    def _run(self, number):
        """Returns the seconds of some calls."""
        self._namespace["__number__"] = number
        cuda.synchronize()
        begin = self._timer()
        exec(self._code, self._namespace)
        cuda.synchronize()
        return self._timer() - begin

    def timeit(self, number=1000000):
        """Returns the time of `number` calls, after a few that are not counted."""
        self._run(max(number // 100, 2))
        return Measurement(number, [self._run(number)], **self._shown)

    def _number(self, min_run_time):
        """Returns how many calls take about a hundredth of a time, and at least one."""
        number = 1
        while True:
            seconds = self._run(number)
            if seconds >= min_run_time / 100 or number >= 1 << 24:
                return number
            number *= 10 if seconds < min_run_time / 1000 else 2

    def blocked_autorange(self, callback=None, min_run_time=0.2):
        """Returns the times of runs that take `min_run_time` seconds together."""
        number, times = self._number(min_run_time), []
        while sum(times) < min_run_time:
            times.append(self._run(number))
            if callback is not None:
                callback(number, times[-1])
        return Measurement(number, times, **self._shown)

    def adaptive_autorange(self, threshold=0.1, *, min_run_time=0.01, max_run_time=10.0, callback=None):
        """Returns the times of runs until they differ by less than a share of their median, or take `max_run_time` seconds together."""
        number, times = self._number(min_run_time), []
        while True:
            times.append(self._run(number))
            if callback is not None:
                callback(number, times[-1])
            made = Measurement(number, times, **self._shown)
            if sum(times) >= max_run_time or (len(times) > 3 and sum(times) >= min_run_time and made.iqr <= threshold * made.median):
                return made

    def collect_callgrind(self, *args, **kwargs):
        """Raises: instructions are not counted."""
        raise NotImplementedError("Timer.collect_callgrind is left out: instructions are not counted")


class Compare:
    """A table of measurements: a row for each `sub_label`, a column for each `description`."""

    def __init__(self, results):
        self._results = list(results)

    def extend_results(self, results):
        """Adds measurements."""
        self._results.extend(results)

    def trim_significant_figures(self):
        """Does nothing: times have two digits after the point."""

    colorize = highlight_warnings = trim_significant_figures

    def __str__(self):
        columns, rows = (list(dict.fromkeys(getattr(one, name) for one in self._results)) for name in ("description", "sub_label"))
        times = {(one.sub_label, one.description): _shown(one.median) for one in self._results}
        cells = [["", *columns], *[[row, *[times.get((row, column), "") for column in columns]] for row in rows]]
        widths = [max(len(line[place]) for line in cells) for place in range(len(columns) + 1)]
        label = next((one.label or one.stmt for one in self._results), "")
        lines = ["  |  ".join(part.rjust(width) for part, width in zip(line, widths)) for line in cells]
        return "\n".join([f"[{label}]", lines[0], "-" * len(lines[0]), *lines[1:]]) + "\n"

    def print(self):
        """Prints the table."""
        print(str(self))


def timer():
    """Returns the time in seconds, when the device is idle."""
    cuda.synchronize()
    return time.perf_counter()


__getattr__ = attributes(__name__)
