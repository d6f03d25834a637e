"""A pytest plugin: a test that uses the fixture `thalweg_check` runs under the seeds of a check (`thalweg.testing`)."""

import pytest


def pytest_addoption(parser):
    parser.getgroup("thalweg").addoption(
        "--thalweg-seeds", type=int, default=100, metavar="N", help="how many seeds a test with the fixture thalweg_check runs under (100)")


@pytest.fixture
def thalweg_check(request):
    """Runs the test on a simulated GPU with many seeds, and fails it with a report of races and lifetime bugs. The value is the
    number of seeds."""
    return request.config.getoption("--thalweg-seeds")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if "thalweg_check" not in pyfuncitem.fixturenames:
        return None
    from . import testing
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    report = None
    try:
        testing.check(lambda: pyfuncitem.obj(**arguments), seeds=pyfuncitem.funcargs["thalweg_check"])
    except testing.CheckFailed as failure:
        report = str(failure)
    if report is not None:
        pytest.fail(report, pytrace=False)
    return True
