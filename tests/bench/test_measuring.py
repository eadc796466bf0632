"""A process that measures: its last line counts, its last words explain a failure."""

from __future__ import annotations

import pytest

from pbrl.bench.measuring import answer_of, begin
from pbrl.errors import PbrlError


def test_the_last_line_is_the_answer_and_threads_are_told() -> None:
    code = "import os; print('hello'); print('{\"n\": %s}' % os.environ['OMP_NUM_THREADS'])"
    assert answer_of(begin(["-c", code], 3), "x") == {"n": 3}


@pytest.mark.parametrize(("code", "said"), [("1/0", "division by zero"), ("exit(1)", "no message")])
def test_a_failure_is_one_sentence(code: str, said: str) -> None:
    with pytest.raises(PbrlError, match=rf"^Measuring 'td3bc' failed: [^\n]*{said}$"):
        answer_of(begin(["-c", code], 1), "td3bc")
