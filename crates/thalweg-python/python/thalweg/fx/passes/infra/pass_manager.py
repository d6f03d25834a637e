"""The order of passes (`torch.fx.passes.infra.pass_manager`)."""

import functools
import inspect

from ...graph_module import GraphModule
from .pass_base import PassResult

__all__ = ["PassManager", "inplace_wrapper", "pass_result_wrapper", "this_before_that_pass_constraint"]


def pass_result_wrapper(fn):
    """Returns a function that changes a module as one that returns a `PassResult`."""
    if fn is None:
        return None

    @functools.wraps(fn)
    def wrapped(gm):
        result = fn(gm)
        if result is None:
            return PassResult(gm, True)
        return result if isinstance(result, PassResult) else PassResult(result, True)
    if not inspect.isfunction(fn):
        wrapped.__name__ = type(fn).__name__
    return wrapped


def inplace_wrapper(fn):
    """Returns a function that changes a module as one that returns a `PassResult`."""
    return pass_result_wrapper(fn)


def this_before_that_pass_constraint(this, that):
    """Returns the constraint that one pass comes before another."""
    return lambda one, other: one != that or other != this


def _validate_pass_schedule_constraint(constraint, passes):
    for place, one in enumerate(passes):
        for other in passes[place + 1:]:
            if not constraint(one, other):
                raise RuntimeError(f"pass schedule constraint violated. Expected {one} before {other} but found {one} at index {place} and {other} "
                                   "later in pass list.")


def _topological_sort_passes(passes, constraints):
    """Returns passes in an order in which all constraints hold."""
    if not constraints:
        return passes
    before = {one: [other for other in passes if other is not one and not all(constraint(one, other) for constraint in constraints)]
              for one in passes}
    ordered, visiting = [], []

    def visit(one):
        if one in ordered:
            return
        if one in visiting:
            raise RuntimeError(f"Circular dependency detected within the following passes: {[part.__name__ for part in visiting]}")
        visiting.append(one)
        for other in before[one]:
            visit(other)
        visiting.remove(one)
        ordered.append(one)
    for one in passes:
        visit(one)
    return ordered


class PassManager:
    """Runs passes in an order that all constraints allow."""

    def __init__(self, passes=None, constraints=None, steps=None, run_checks_after_each_pass=False, suppress_check_failures=False):
        self.passes, self.constraints, self.steps = passes or [], constraints or [], steps or 1
        self.run_checks_after_each_pass, self.suppress_check_failures, self._validated = run_checks_after_each_pass, suppress_check_failures, False

    def add_pass(self, _pass):
        """Adds a pass at the end."""
        self.passes.append(_pass)
        self._validated = False

    def add_constraint(self, constraint):
        """Adds a constraint."""
        self.constraints.append(constraint)
        self._validated = False

    def validate_constraints(self):
        """Raises a `RuntimeError` if the order breaks a constraint."""
        if not self._validated:
            for constraint in self.constraints:
                _validate_pass_schedule_constraint(constraint, self.passes)
            self._validated = True

    def solve_constraints(self):
        """Sorts the passes so that all constraints hold."""
        self.passes = _topological_sort_passes(self.passes, self.constraints)
        self._validated = True

    def add_checks(self, check):
        """Adds a check that runs after all passes, and also after each pass if `run_checks_after_each_pass` is set."""
        if list(inspect.signature(check).parameters.values()) == [] or len(inspect.signature(check).parameters) != 1:
            raise TypeError("PassManager check function should only take in one variable, a module")
        self.check = check

    def check(self, module):
        """Checks a module. `add_checks` replaces it."""

    def __call__(self, module):
        if not self._validated:
            self.solve_constraints()
        self.check(module)
        modified = False
        for _ in range(self.steps):
            changed = False
            for place, one in enumerate(self.passes):
                name = one.__name__ if inspect.isfunction(one) else type(one).__name__
                try:
                    result = one(module)
                    if not isinstance(result, PassResult) and not hasattr(result, "graph_module"):
                        raise TypeError(f"The result of the pass {name} should be type PassResult.Please wrap it with pass_result_wrapper()")
                    module, changed = result.graph_module, changed or result.modified
                    if isinstance(module, GraphModule):
                        module.recompile()
                    if self.run_checks_after_each_pass:
                        self.check(module)
                except Exception as error:
                    former = [part.__name__ if inspect.isfunction(part) else type(part).__name__ for part in self.passes[:place]]
                    raise Exception(f"An error occurred when running the '{name}' pass after the following passes: {former}") from error
            modified = modified or changed
            if not changed:
                break
        return PassResult(module, modified)
