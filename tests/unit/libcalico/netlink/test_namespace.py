"""libcalico.netlink.namespace: errors come back to the caller. (Real visits: tests/netns.)"""

from __future__ import annotations

import errno
import os

import pytest

from libcalico.errors import ProgrammingFailed
from libcalico.netlink.namespace import run_in_namespace


def test_a_missing_namespace_is_a_typed_error():
    with pytest.raises(ProgrammingFailed) as missing:
        run_in_namespace("/run/netns/brn-never-there", lambda: None)
    assert (missing.value.operation, missing.value.errno) == ("open namespace", errno.ENOENT)


@pytest.mark.parametrize("by_path", [True, False])
def test_what_is_no_namespace_is_a_typed_error_and_the_work_is_not_done(by_path, tmp_path):
    done = []
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        with pytest.raises(ProgrammingFailed) as refused:
            run_in_namespace("/dev/null" if by_path else fd, lambda: done.append(1))
    finally:
        os.close(fd)
    assert refused.value.operation == "enter namespace"
    assert done == []
