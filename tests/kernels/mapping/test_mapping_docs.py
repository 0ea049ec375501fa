"""The page about task mappings shows what the code draws and prints."""

from __future__ import annotations

import re
from pathlib import Path

from kernel_selector.kernels.mapping import draw, parse
from kernel_selector.kernels.matmul.limits import Limits
from kernel_selector.kernels.matmul.schedule import parse as parse_schedule

PAGE = (Path(__file__).parents[3] / "docs/task_mappings.md").read_text()


def test_drawings_are_those_of_the_code():
    blocks = re.findall(r"```text mapping\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        mapping = parse(block.partition(":")[0])
        assert block == draw(mapping) + "\n"


def test_neighbours_share_what_the_page_says():
    grouped = parse("spatial(2, 1) * spatial(4, 6, order=(1, 0))")
    plain = parse("spatial(8, 6)")
    for mapping, rows, columns in ((grouped, 4, 3), (plain, 2, 6)):
        tasks = [task for program in range(12) for task in mapping(program)]
        assert len({m for m, _ in tasks}) == rows
        assert len({n for _, n in tasks}) == columns


def test_schedules_of_the_page_are_schedules():
    for text in re.findall(r"\d+x\d+x\d+ warps=\d+ stages=\d+[a-z ]*", PAGE):
        assert parse_schedule(text).fit(Limits(), 2)


def test_examples_run(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert "gelu(bias(a [M, K] b [K, N]))" in capsys.readouterr().out
