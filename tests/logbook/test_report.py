"""A measurement as text: the measured values, rounded as the error allows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from workbench.logbook import report
from workbench.logbook.report import MIME, Report
from workbench.records import GpuMeasurement, IterationSummary, LevelCost, Measurement, Process, Setting
from workbench.tariff import Tariff

GPU = GpuMeasurement(
    "Tesla V100", "GPU-1", 123.4321, 1.8342, "counter", True, mean_power_w=12.41, peak_power_w=30.0,
    idle_share=0.25, setting=Setting(200.0), power_limit_w=200.0, sm_clock_mhz=1380.0,
    throttle_reasons=("power cap",),
)
M = Measurement("id", "train", 1_700_000_000.0, 9.98, (GPU,))
NONE = replace(
    M,
    gpus=(replace(GPU, energy_j=None, energy_uncertainty_j=None, source="none", notes=("GPU is lost",)),),
)


VALUES = r"[\d.]+ (?:J|s|W|%)|train|simulated"


def test_no_name_of_a_level_is_html() -> None:
    levels = tuple(LevelCost(f"iteration at <i>{limit_w} W", 4, 4.0, 40.0, 1.0, 10.0) for limit_w in (150, 200))
    found = IterationSummary(8, 1.0, energy_j=10.0, source="marks", levels=levels)
    assert "<i>" not in report.page(replace(M, iterations=found))


def test_the_line_has_joules_with_the_errors_of_sensor_and_reading_seconds_and_watts() -> None:
    assert re.findall(VALUES, report.line(M)) == ["train", "123 J", "5 %", "1.5 %", "9.98 s", "12.4 W", "simulated"]
    assert re.findall(VALUES, report.line(replace(M, label="", gpus=(replace(GPU, simulated=False),)))) == ["123 J", "5 %", "1.5 %", "9.98 s", "12.4 W"]


def test_without_energy_the_line_has_the_reason_and_no_joule() -> None:
    assert re.fullmatch("train: 9.98 s.*lost", report.line(NONE))
    assert re.fullmatch("50 ms.*no GPU.*", report.line(Measurement("i", "", 0.0, 0.05)))
    assert re.fullmatch("50 ms.*no driver", report.line(Measurement("i", "", 0.0, 0.05, notes=("no driver",))))


@pytest.mark.parametrize(
    ("outcome", "text"),
    [("error", "an error"), ("interrupted", "interrupted"), ("ok", "W, simulated")],
)
def test_the_line_reports_the_outcome(outcome: str, text: str) -> None:
    assert text in report.line(replace(M, outcome=outcome))


def test_several_gpus_and_several_runs_are_reported() -> None:
    two = replace(M, gpus=(GPU, replace(GPU, uuid="GPU-2")))
    assert "2 GPUs" in report.line(two)
    assert re.search(r"247 J.*1\.1 %", report.line(two))  # 1.8342 x sqrt(2)
    runs = replace(M, repeats=3, energy_sd_j=2.345, time_sd_s=0.1234)
    assert re.search(r"3 runs.*2\.3 J", report.line(runs))


@pytest.mark.parametrize(
    ("energy_j", "bar_j", "text"),
    [
        (123.4321, 12.0, "123 ± 12 J"),
        (0.00213, 0.0004, "0.00213 ± 0.00040 J"),
        (9_999.0, 3.0, "9.999 ± 0.003 kJ"),
        (62_720.11, 0.36, "62.72 ± 0.01 kJ"),  # no more digits than a comparison on one card needs
        (25_000.0, 130.0, "25.00 ± 0.13 kJ"),
        (5.0, None, "5.00 J"),
        (None, None, "no energy"),
        (0.0, 0.5, "0.00 ± 0.50 J"),
        (3.0, 250.0, "3 ± 250 J"),
    ],
)
def test_joules_are_rounded_to_what_their_error_allows(
    energy_j: float | None, bar_j: float | None, text: str
) -> None:
    assert report.format_energy(energy_j, bar_j) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0999, "99.9 ms"),
        (0.1, "0.1 s"),
        (99.96, "100 s"),
        (119.4, "119 s"),
        (120.0, "2 min 0 s"),
        (5999.0, "99 min 59 s"),
        (6000.0, "1 h 40 min"),
        (86400.0, "24 h 0 min"),
    ],
)
def test_durations_have_readable_units(seconds: float, text: str) -> None:
    assert report.format_duration(seconds) == text


def test_money_and_carbon_are_shown_only_when_they_are_set() -> None:
    kwh = replace(M, gpus=(replace(GPU, energy_j=3.6e6, energy_uncertainty_j=1e4),))
    assert "EUR" not in report.line(kwh)
    assert "CO2" not in report.page(kwh)
    assert "0.30 EUR" in report.line(kwh, Tariff(0.3))
    assert "400 gCO2" in report.line(kwh, Tariff(None, "EUR", 400.0))
    assert re.search("0.25 CHF.*400 gCO2", report.page(kwh, Tariff(0.25, "CHF", 400.0)))
    assert Tariff(0.3).text(None) == ""
    assert "EUR" not in report.line(NONE, Tariff(0.3))


class Tags(HTMLParser):
    """Every tag is closed in order, and what tags there are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.observed: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.observed.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_plain_html_without_a_script() -> None:
    hostile = "<script>alert(1)</script><img onerror=x>"
    gpu = replace(
        GPU, name=hostile, notes=(hostile,), throttle_reasons=(hostile,),
        other_processes=(Process(1, hostile),),
    )
    for m in (M, NONE, replace(M, label=hostile, notes=(hostile,), gpus=(gpu,))):
        tags = Tags()
        tags.feed(report.page(m))
        assert tags.open == []
        assert tags.observed <= {"details", "summary", "table", "tr", "th", "td", "ul", "li", "div", "span", "b"}
        assert tags.attributes <= {"class", "style"}


def test_the_page_has_a_row_for_each_gpu_and_everything_that_was_noted() -> None:
    m = replace(
        M, gpus=(GPU, replace(GPU, name="A100", notes=("odd",))), cpu_energy_j=40.0, dram_energy_j=2.0,
        notes=("cell",),
    )
    page = report.page(m)
    assert page.count("<tr>") == 3
    for text in (
        "Tesla V100", "123 J", "30.0 W", "200 W", "1380 MHz", "25 %", "power cap", "counter, simulated",
        "<li>cell</li>", "<li>A100: odd</li>", "40.0 J", "2.00 J", "± 5 %",
    ):
        assert text in page
    assert "colo" not in re.sub(r"opacity", "", page)  # inherited, so that it can be read in any theme


def test_no_calibration_is_spoken_of_where_nothing_was_measured() -> None:
    assert "calibration" not in report.page(NONE)
    assert "None" not in report.page(NONE) + report.page(Measurement("i", "", 0.0, 1.0))


def test_the_bundle_is_text_html_and_json_of_its_own_type() -> None:
    bundle = Report(M)._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", MIME}
    assert "application/json" not in bundle  # it would win over HTML
    values = json.loads(json.dumps(bundle[MIME]))
    assert values["energy_j"] == 123.4321
    assert values["gpus"][0]["setting"] == {
        "power_limit_w": 200.0, "sm_clock_mhz": None, "mem_clock_mhz": None,
    }
    assert (values["source"], values["simulated"], values["mean_power_w"]) == (
        "counter, simulated", True, M.mean_power_w,
    )


def test_remarks_come_with_the_report() -> None:
    shown = Report(M, remarks=["full <now>"])
    assert repr(shown) == f"{report.line(M)}\nfull <now>"
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == repr(shown)
    assert bundle["text/html"].index(">123 J<") < bundle["text/html"].index("full &lt;now&gt;")
    assert bundle["text/html"].index("full &lt;now&gt;") < bundle["text/html"].index("<details")


def test_the_headline_reports_what_changes_the_meaning() -> None:
    foreign = "other processes used this GPU and are in the figure: python (7085)"
    gpu = replace(GPU, idle_share=0.995, notes=(foreign, "3 gaps in sampling; their energy comes from the counter"))
    headline, _, folded = report.page(replace(M, gpus=(gpu,), outcome="interrupted")).partition("<details")
    for text in ("simulated", "interrupted", "idle 100 %", "Other processes"):
        assert text in headline
    assert "gaps in sampling" in folded
    assert "gaps in sampling" not in headline
    assert "⚠" not in report.page(M)


def test_doubts_of_the_detector_are_in_the_details_and_its_result_in_the_headline() -> None:
    doubt = IterationSummary(0, sure=False, reason="aliasing suspected", detected_s=0.328)
    headline, _, folded = report.page(replace(M, iterations=doubt)).partition("<details")
    assert "aliasing" not in headline
    assert "aliasing suspected" in folded
    found = report.page(replace(M, iterations=FOUND)).partition("<details")[0]
    assert all(each in found for each in ("96.0 ± 2.1 J", "412.3 ± 3.1 ms"))


def test_the_card_shows_what_changed_against_the_last_run_of_its_label() -> None:
    assert "last run" not in report.page(M)
    assert "−12.0 ± 0.4 % energy" in report.page(M, against="−12.0 ± 0.4 % energy")


def test_the_headline_has_the_cost_under_each_setting_and_not_their_mean() -> None:
    levels = tuple(LevelCost(f"iteration at {watts} W", 10, 4.0, 10.0 * joules, 0.4, joules)
                   for watts, joules in ((250, 108.0), (145, 85.5)))
    headline = report.page(replace(M, iterations=replace(FOUND, levels=levels))).partition("<details")[0]
    assert "250 W" in headline
    assert "85.5 J" in headline
    assert "96.0" not in headline


FOUND = IterationSummary(
    24,
    0.4123,
    0.0031,
    96.04,
    2.1,
    "detected",
    (
        LevelCost("iteration", 24, 9.9, 2304.0, 0.4123, 96.04),
        LevelCost("pause", 3, 9.0, 450.0, 3.0, 150.0, every=12.0),
        LevelCost("other", 1, 0.5, 20.0, 0.5, 20.0),
    ),
)


def test_the_line_reports_what_an_iteration_costs() -> None:
    reported = report.line(replace(M, iterations=FOUND))
    assert reported.startswith(report.line(M) + "; ")
    assert all(each in reported for each in ("412.3 ± 3.1 ms", "96.0 ± 2.1 J", "24 iterations", "3 s pause", "every 12"))
    once = replace(FOUND, levels=(LevelCost("pause", 1, 4.3, None, 4.3, None),))
    assert "4.3 s pause" in report.line(replace(M, iterations=once))
    twice = replace(FOUND, levels=(LevelCost("pause", 2, 19.2, None, 9.6, None, every=12.0),))  # as once stored
    assert re.search("2 pauses.*9.6 s", report.line(replace(M, iterations=twice)))
    two_jobs = replace(FOUND, levels=(LevelCost("long iteration", 90, 94.5, None, 1.05, None),))
    assert re.search("90 .*1.05 s", report.line(replace(M, iterations=two_jobs)))
    alone = replace(FOUND, count=1, time_uncertainty_s=None, energy_uncertainty_j=None, levels=())
    assert re.search("96.0 J.* 1 iteration", report.line(replace(M, iterations=alone)))
    without = replace(FOUND, energy_j=None, energy_uncertainty_j=None, levels=())
    assert re.fullmatch(r"412.3 ± 3.1 ms[^J]*", report.describe_iterations(without))


def test_missing_or_unsure_iterations_are_reported() -> None:
    none = IterationSummary(0, sure=False, reason="flat: the power hardly changes")
    assert "flat" in report.line(replace(M, iterations=none))
    unsure = replace(none, reason="too short: 3.1 s", detected_s=0.412)
    assert re.search("0.412 s.*too short", report.describe_iterations(unsure))
    assert "iteration" not in report.line(M)


def test_a_detector_that_the_marks_contradict_is_reported_and_one_that_agrees_is_on_the_page() -> None:
    agrees = replace(FOUND, source="marks", check="the power trace alone shows 0.41 s: 0.6 % off the reported steps")
    assert "power trace" not in report.line(replace(M, iterations=agrees))
    assert agrees.check in report.page(replace(M, iterations=agrees))
    differs = replace(agrees, check="the power trace alone shows 0.82 s: 2 marked iterations")
    assert differs.check in report.line(replace(M, iterations=differs))


def test_the_page_has_a_table_of_the_parts_and_the_json_all_of_them() -> None:
    page = report.page(replace(M, iterations=FOUND))
    assert page.count("<tr>") == 2 + 4
    for cell in (">pause</td>", "150 J", "2304 J", "0.412 s"):
        assert cell in page
    values = json.loads(json.dumps(Report(replace(M, iterations=FOUND))._repr_mimebundle_()[MIME]))["iterations"]
    assert (values["count"], values["time_s"], values["source"]) == (24, 0.4123, "detected")
    assert [level["name"] for level in values["levels"]] == ["iteration", "pause", "other"]
    assert report.as_dict(M)["iterations"] is None


def test_a_tuned_run_does_not_warn_of_the_settings_that_the_tuner_tried() -> None:
    note = "the setting changed inside: 218 W for 61 s, 250 W for 26 s"
    changed = replace(M, gpus=(replace(GPU, notes=(note,)),))
    assert "⚠" in report.page(changed)
    assert "⚠" not in report.page(replace(changed, kind="tuned cell"))
