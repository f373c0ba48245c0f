"""A tiny run of the whole benchmark on RabbitMQ and SQLite. The tests assert counts, but no times."""

import pytest

from tests.integration.novad import novad_node
from tools.bench import report
from tools.bench.__main__ import PARTS, measure, parse
from tools.bench.amounts import TINY

REQUIRED = (
    "boots_per_s", "cpu_ms_per_boot", "messages_per_boot", "statements_per_boot", "post_p50_ms", "get_server_ms",
    "get_server_rps", "list_1000_ms", "select_1_of_10000_ms", "select_1000_on_10000_ms", "check_300_us",
    "search_text_ms", "rss_mb", "start_s")
SERVICES = {"api", "conductor", "scheduler", "compute"}


def results_of(parts):
    """Return the results of these parts. The run ends with a consistency audit of copied and booted servers."""
    made = {}
    measure(parse(["--database", "sqlite", "--nodes", "7", "--api-workers", "1", "--only", ",".join(parts)]), TINY,
            made)
    return made


@pytest.fixture(scope="module")
def boots():
    return results_of(["boots", "counts"])


@pytest.fixture(scope="module")
def results():
    return results_of(part for part in PARTS if part != "federator")  # needs real clusters, and minutes


def test_boot_stop_and_delete_need_few_messages(boots):
    assert 4 <= boots["messages_per_boot"] <= 10
    assert 2 <= boots["messages_per_stop"] <= 7
    assert 2 <= boots["messages_per_delete"] <= 8


def test_sqlite_results_have_no_statement_count(boots):
    assert boots["statements_per_boot"] is None


def test_cpu_per_boot_is_reported_by_process(boots):
    used = boots["cpu_ms_per_boot_by_process"]
    assert used.keys() == SERVICES | {"rabbitmq"}
    assert sum(used.values()) == pytest.approx(boots["cpu_ms_per_boot"], abs=0.1)


def test_report_table_is_created_from_results(boots):
    assert "bus messages per boot" in report.table(boots)


@pytest.mark.slow
def test_json_results_have_all_required_keys(results):
    assert set(REQUIRED) <= results.keys()
    numbers = [name for name in REQUIRED if name not in ("rss_mb", "start_s", "statements_per_boot")]
    assert all(results[name] > 0 for name in numbers), {name: results[name] for name in numbers}
    assert results["rss_mb"].keys() == results["start_s"].keys() == SERVICES
    assert results["environment"]["database_version"].startswith("SQLite")
    assert results["environment"]["setup"]["nodes"] == 7
    assert {"cores", "load_average_at_start", "python", "nova"} <= results["environment"].keys()


@pytest.mark.slow
def test_memory_is_measured_before_and_after_the_cycles(results):
    assert results["cycles"] == TINY.cycles
    assert results["cycles_growth_mb"].keys() == results["cycles_rss_mb"].keys() == SERVICES
    assert all(size > 20 for size in results["cycles_rss_mb"].values())


@pytest.mark.slow
def test_lists_and_growth_use_the_configured_server_counts(results):
    assert results["listed"] == TINY.listed
    assert [point["servers"] for point in results["growth"]] == list(TINY.growth)
    for point in results["growth"]:
        # The list grows with the number of servers, a single server does not.
        assert point["list_1000_bytes"] > point["get_server_bytes"] * point["servers"] * 0.8


@pytest.mark.slow
def test_boot_cost_growth_is_relative_to_the_calibration_loop(results):
    first, last = (point["cpu_yardsticks_per_boot"] for point in results["growth"])
    assert results["boot_cost_growth"] == pytest.approx(last / first, abs=0.001)
    for point in results["growth"]:
        assert 0 < point["cpu_yardsticks_per_boot"] * point["yardstick_ms"] <= point["cpu_ms_per_boot"] * 1.001
    assert results["yardstick_ms"] > 0
    assert f"calibration loop took {results['yardstick_ms']:.2f} ms" in report.table(results)


@pytest.mark.slow
def test_resizes_are_measured_with_confirmation(results):
    assert results["resizes"] == TINY.resizes
    assert results["resizes_per_s"] > 0


@pytest.mark.slow
def test_fairness_is_measured_during_background_load(results):
    assert results["crowd"] == TINY.background_servers
    assert results["fair_rounds"] > 0
    for name in ("boot", "stop", "delete"):
        assert 0 < results[f"fair_{name}_p50_s"] <= results[f"fair_{name}_s"]
        assert results[f"fair_{name}_alone_s"] > 0


@pytest.mark.slow
def test_overload_offers_more_than_the_peak_load(results):
    assert results["overload_offered_per_s"] > results["peak_per_s"] > 0
    assert sum(results["overload_answers"].values()) > 0
    # All clients share an address, so responses may be 429.
    assert set(results["overload_answers"]) <= {"0", "200", "429"}, "unexpected statuses"
    assert results["goodput_ratio"] == pytest.approx(results["goodput_per_s"] / results["peak_per_s"], rel=0.01,
                                                     abs=0.0006)  # rounding
    assert results["overload_boots_ratio"] > 0


@pytest.mark.slow
@pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())
def test_novad_is_measured_without_lost_log_lines(results):
    assert results["novad_log_lost"] == 0
    assert results["novad_log_lines_per_s"] > 0
    assert 0 < results["novad_rss_mb"] < 100


@pytest.mark.slow
def test_every_list_of_many_servers_is_measured():
    found = {}
    measure(parse(["--only", "million", "--api-workers", "1", "--conductor-workers", "1"]), TINY, found)
    assert len(found["million"]) > 80
    assert {"sort_key=display_name", "deleted=1&status=ERROR", "usage of an old day"} <= found["million"].keys()
    assert all(times.keys() == {"sqlite"} and times["sqlite"] > 0 for times in found["million"].values())
