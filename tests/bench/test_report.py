"""Tests of the benchmark's report."""

import json

import pytest

from tools.bench import report
from tools.bench.__main__ import parse

GOOD = {
    "boots_per_s": 50.0, "cpu_ms_per_boot": 30.0, "messages_per_boot": 7.2, "statements_per_boot": 19.0,
    "post_p50_ms": 50.0, "get_server_ms": 4.0, "get_server_rps": 400.0, "list_1000_ms": 90.0,
    "select_1_of_10000_ms": 0.5, "select_1000_on_10000_ms": 60.0, "boot_cost_growth": 1.1,
    "rss_mb": {"api": 70.0, "conductor": 75.0, "scheduler": 60.0, "compute": 50.0},
    "cycles_growth_mb": {"api": 1.0, "conductor": 2.5, "scheduler": -0.5, "compute": 0.0},
    "start_s": {"api": 0.5, "conductor": 0.6, "scheduler": 0.5, "compute": 0.4},
    "fair_boot_s": 0.4, "fair_stop_s": 0.2, "goodput_ratio": 0.9, "overload_boots_ratio": 1.1, "resizes_per_s": 12.0,
    "novad_deploy_s": 0.9, "novad_rss_mb": 55.0, "novad_log_lines_per_s": 1200.0, "novad_log_lost": 0,
    "novad_suite_s": 40.0, "federator_burst_ratio": 0.8, "federator_clusters_ratio": 1.1,
    "federator": {"p50_ms": 20.0, "p99_ms": 90.0, "servers": 15.0, "scheduler": 4.0, "agents": 4.0, "agent_mb": 50.0},
    "federator_many_clusters": {"idle_scheduler_percent": 3.0, "scheduler_mb": 200.0, "idle_agent_percent": 0.5,
                                "restart_s": 9.0, "edit_scheduler_ms": 5.0}}


def lines(text, containing):
    return [line for line in text.splitlines() if containing in line]


def test_good_numbers_meet_every_target():
    table = report.table(GOOD)
    assert "NOT MET" not in table
    limited = [target for target in report.TARGETS if target.limit is not None]
    assert f"{len(limited)} of {len(limited)} measured targets are met." in table


def test_number_without_a_limit_is_shown_without_a_verdict():
    row = lines(report.table({"resizes_per_s": 12.0}), "resizes")[0].split()
    assert row[-3:] == ["12", "/s", "-"]


@pytest.mark.parametrize(("name", "value", "row"), [
    ("boots_per_s", 39.9, "boots/s"),
    ("cpu_ms_per_boot", 45.1, "CPU per boot"),
    ("messages_per_boot", 10.5, "bus messages"),
    ("statements_per_boot", 31.0, "SQL statements"),
    ("post_p50_ms", 61.0, "POST /servers"),
    ("get_server_ms", 6.1, "GET /servers/{id} alone"),
    ("get_server_rps", 249.0, "GET /servers/{id}, 8 clients"),
    ("list_1000_ms", 121.0, "GET /servers/detail"),
    ("select_1_of_10000_ms", 5.1, "select 1 of"),
    ("select_1000_on_10000_ms", 251.0, "select 1,000 on"),
    ("boot_cost_growth", 1.21, "boot cost"),
    ("fair_boot_s", 1.01, "boot during"),
    ("fair_stop_s", 0.51, "stop during"),
    ("goodput_ratio", 0.79, "responses in time"),
    ("overload_boots_ratio", 0.79, "80 clients vs 20"),
    ("federator_burst_ratio", 0.69, "burst vs prototype"),
    ("federator", {**GOOD["federator"], "p99_ms": 251.0}, "create to copy p99"),
    ("rss_mb", {**GOOD["rss_mb"], "scheduler": 80.5}, "resident memory: scheduler"),
    ("cycles_growth_mb", {**GOOD["cycles_growth_mb"], "conductor": 3.1}, "memory growth over the cycles: conductor"),
    ("start_s", {**GOOD["start_s"], "compute": 1.6}, "start until ready: compute"),
])
def test_number_beyond_its_target_is_not_met(name, value, row):
    table = report.table({**GOOD, name: value})
    assert [line for line in table.splitlines() if "NOT MET" in line] == lines(table, row)


def test_missing_numbers_have_no_verdict():
    table = report.table({"messages_per_boot": 7.2, "statements_per_boot": None})
    assert "1 of 1 measured targets are met." in table
    assert "NOT MET" not in table


def test_busy_machine_is_mentioned():
    assert "The machine was not idle" in report.table({**GOOD, "foreign_cores": 0.5})
    assert "The machine was not idle" not in report.table({**GOOD, "foreign_cores": 0.01})


def test_comparison_shows_ratios_of_common_numbers():
    old = {"boots_per_s": 20.0, "rss_mb": {"api": 50.0}, "only_old": 1, "statements_per_boot": None,
           "growth": [{"servers": 1000, "boots_per_s": 10.0}], "environment": {"cores": 2}}
    new = {"boots_per_s": 30.0, "rss_mb": {"api": 40.0}, "only_new": 1, "statements_per_boot": 19.0,
           "growth": [{"servers": 1000, "boots_per_s": 5.0}], "environment": {"cores": 4}}
    rows = [line.split() for line in report.compare(old, new).splitlines()[1:]]
    assert rows == [["boots_per_s", "20", "30", "1.50"], ["rss_mb.api", "50", "40", "0.80"],
                    ["growth.1000.boots_per_s", "10", "5", "0.50"]]


def test_comparison_with_zero_before_has_no_ratio():
    assert report.compare({"stolen": 0.0}, {"stolen": 1.0}).splitlines()[1].split()[-1] == "-"


def test_numbers_are_saved_and_loaded_unchanged(tmp_path):
    path = str(tmp_path / "numbers.json")
    report.save(GOOD, path)
    assert report.load(path) == json.loads((tmp_path / "numbers.json").read_text()) == GOOD


def test_growth_plot_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    from tools.bench import plot

    point = dict.fromkeys(("boots_per_s", "cpu_ms_per_boot", "post_p50_ms", "get_server_ms", "list_1000_ms"), 1.0)
    path = tmp_path / "growth.png"
    plot.save([{**point, "servers": servers, "rss_mb": {"api": 50.0}} for servers in (1000, 20_000)], str(path))
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_unknown_benchmark_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--only", "boots,nonsense"])
    assert "no such part: nonsense" in capsys.readouterr().err


def test_details_show_numbers_without_a_target():
    text = report.details({
        "boots": {"20": {"boots_per_s": 55.5, "post_p99_ms": 400.0}}, "messages_per_stop": 5.0, "flavors_ms": 6.5,
        "select_1_of_10_ms": 0.2, "growth": [{"servers": 20_000, "get_server_ms": 4.25}]})
    rows = {row[0]: row[1:] for row in (line.split() for line in text.splitlines()) if row}
    assert rows["20"][0] == "55.5"
    assert "400" in rows["20"]
    assert rows["stop"] == ["5", "-", "-"]
    assert rows["flavors"][0] == "6.5"
    assert rows["10"] == ["0.2", "-"]
    assert "4.25" in rows["20000"]
    assert "get_server" not in rows


def test_details_without_numbers_are_empty():
    assert report.details({}) == ""


def test_invalid_comparison_file_is_refused_before_the_run(tmp_path, capsys):
    from tools.bench.__main__ import parse

    other = tmp_path / "other.json"
    other.write_text("[]")
    for path in (str(other), str(tmp_path / "missing.json")):
        with pytest.raises(SystemExit):
            parse(["--compare", path])
        assert path in capsys.readouterr().err
