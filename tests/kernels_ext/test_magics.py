"""`%%energy` in a real kernel: the cell behaves as it would without it, and one line shows its cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import polars as pl
import pytest
from a_kernel import TIMEOUT_S, Kernel, gone


@pytest.fixture(scope="module")
def kernel(start: Callable[..., Kernel]) -> Kernel:
    """A kernel with the extension and a simulated V100; live views are the panels' tests."""
    made = start()
    assert made("%load_ext kernels_ext").text == ""
    note, listed = made("%gpu simulate V100").text.splitlines()[:2]
    assert "simulated GPUs" in note
    assert listed.startswith("GPU 0: Tesla V100")
    made("%config EnergyMagics.live = False")
    return made


@pytest.fixture(autouse=True)
def defaults(kernel: Kernel) -> None:
    kernel(
        "%config EnergyMagics.quiet = False\n%config EnergyMagics.price_per_kwh = None\n%config "
        "EnergyMagics.g_co2_per_kwh = None",
        silent=True,
    )


# the cell runs as without the magic


def test_the_value_is_shown_and_the_cost_with_it(kernel: Kernel) -> None:
    ran = kernel("%%energy train\n40 + 2")
    assert (ran.status, ran.value) == ("ok", "42")
    assert kernel("_").value == "42"
    report = ran.report
    assert (report["label"], report["outcome"], report["simulated"]) == ("train", "ok", True)
    assert report["energy_j"] >= 0
    (shown,) = ran.reports
    assert shown["text/plain"].startswith("train: ")
    assert " W, simulated" in shown["text/plain"]
    assert " ± " in shown["text/plain"]
    assert "<script" not in shown["text/html"]


def test_a_semicolon_hides_the_value(kernel: Kernel) -> None:
    ran = kernel("%%energy\n5;")
    assert ran.value is None
    assert len(ran.reports) == 1


def test_an_error_is_the_cells_own_and_what_it_cost_is_kept(kernel: Kernel) -> None:
    """The reply has the status "error", which stops "Run all" in a front end."""
    ran = kernel("%%energy -o cost\nx = 1\n1 / 0")
    assert (ran.status, ran.error) == ("error", "ZeroDivisionError: division by zero")
    assert ran.report["outcome"] == "error"
    assert kernel("cost.outcome, x").value == "('error', 1)"


def test_a_traceback_points_to_the_cells_own_line(kernel: Kernel) -> None:
    ran = kernel("%%energy\na = 1\nraise ValueError('here')")
    assert any(
        "line 2" in line.replace("\x1b[32m", "").replace("\x1b[39m", "") for line in ran.reply["traceback"]
    )


def test_a_syntax_error_is_one(kernel: Kernel) -> None:
    ran = kernel("%%energy\nx = )")
    assert (ran.status, ran.reply["ename"]) == ("error", "SyntaxError")
    assert kernel("%%energy\n1").status == "ok"


def test_top_level_await_works(kernel: Kernel) -> None:
    ran = kernel("%%energy\nimport asyncio\nawait asyncio.sleep(0.2)\n'slept'")
    assert (ran.status, ran.value) == ("ok", "'slept'")
    assert 0.2 <= ran.report["time_s"] < 1.0


def test_an_interrupt_keeps_the_measurement(kernel: Kernel) -> None:
    ran = kernel.interrupted("%%energy -o partial\nimport time\nprint('started', flush=True)\ntime.sleep(30)")
    assert (ran.status, ran.reply["ename"]) == ("error", "KeyboardInterrupt")
    assert ran.report["outcome"] == "interrupted"
    assert 0.3 < ran.report["time_s"] < 10
    assert ran.report["energy_j"] == pytest.approx(26.0 * ran.report["time_s"], rel=0.1)  # it idled
    assert kernel("partial.outcome").value == "'interrupted'"
    assert kernel("%%energy\n1").report["outcome"] == "ok"


@pytest.mark.parametrize(
    "cell", ["%%time\n%%energy stacked\nprint('x')", "%%energy stacked\n%%time\nprint('x')"]
)
def test_other_magics_stack_with_it(kernel: Kernel, cell: str) -> None:
    ran = kernel(cell)
    assert ran.text.startswith("x\nCPU times:")
    assert ran.report["label"] == "stacked"


@pytest.mark.parametrize(
    "cell", ["%%capture out\n%%energy inner\nprint('x')", "%%energy inner\n%%capture out\nprint('x')"]
)
def test_capture_hides_the_output_and_not_the_cost(kernel: Kernel, cell: str) -> None:
    ran = kernel(cell)
    assert ran.text == ""
    assert ran.report["label"] == "inner"
    assert kernel("out.stdout").value == "'x\\n'"


def test_magics_and_commands_inside_work(kernel: Kernel) -> None:
    ran = kernel("%%energy\n!echo shell\n%timeit -n1 -r1 pass\n%energy sum(range(3))")
    assert "shell" in ran.text
    assert "1 loop each" in ran.text
    assert ran.value == "3"
    assert len(ran.reports) == 2


STEPS = """
import workbench
from workbench.measurement import session
for number in range(6):
    session.current().meter.clock.sleep(0.05)
    workbench.step()
"""


@pytest.fixture
def stepped(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel with a clock that moves only when a cell sleeps on it, whatever else the machine does."""
    kernel("import workbench\nworkbench.simulate('V100', stepped=True)")
    yield kernel
    kernel("%gpu simulate V100")


def test_a_cell_with_steps_reports_the_cost_of_an_iteration(stepped: Kernel) -> None:
    kernel = stepped
    ran = kernel(f"%%energy -o cost stepped{STEPS}")
    found = ran.report["iterations"]
    assert (found["count"], found["source"]) == (6, "marks")
    assert found["time_s"] == pytest.approx(0.05)
    assert found["energy_j"] == pytest.approx(26.0 * found["time_s"], rel=0.1)  # it idled
    assert "6 iterations (marks)" in ran.reports[0]["text/plain"]
    assert kernel("cost.iterations.count").value == "6"
    frame = kernel(
        "found = workbench.iterations_of(cost).frame\nfound.filter(found['iteration'].is_not_null()).height"
    ).value
    assert frame == "6"
    log = kernel("row = %energy_log --last 1\nrow.select('iteration_count', 'iteration_source').row(0)")
    assert log.value == "(6, 'marks')"


def test_iterations_are_not_detected_where_that_is_switched_off(stepped: Kernel) -> None:
    kernel = stepped
    assert kernel(f"%%energy --no-period{STEPS}").report["iterations"] is None
    kernel("%config EnergyMagics.period = False")
    try:
        assert kernel(f"%%energy{STEPS}").report["iterations"] is None
        assert kernel(f"%%energy --period{STEPS}").report["iterations"]["count"] == 6
    finally:
        kernel("%config EnergyMagics.period = True")
    assert kernel("%%energy\n1").report["iterations"] is None  # too short to be kept waiting


def test_an_idle_gpu_reports_no_iterations(kernel: Kernel) -> None:
    ran = kernel("%%energy\nimport time\ntime.sleep(3.1)")
    assert ran.report["iterations"]["count"] == 0
    assert (
        "; no iterations found (" in ran.reports[0]["text/plain"]
        or ", not sure (" in ran.reports[0]["text/plain"]
    )


def test_iterations_of_repeated_runs_are_counted_together(stepped: Kernel) -> None:
    assert stepped(f"%%energy --repeat 3{STEPS}").report["iterations"]["count"] == 18


def test_an_empty_cell_is_measured_as_nothing(kernel: Kernel) -> None:
    assert kernel("%%energy").status == "ok"
    assert kernel("1").reports == []
    assert kernel("%%energy\n1").report["label"] == ""


def test_a_cell_without_the_line_is_left_alone(kernel: Kernel) -> None:
    ran = kernel("x = 3\nx")
    assert (ran.value, ran.reports, ran.text) == ("3", [], "")


def test_a_cell_energy_of_a_known_time_is_right(kernel: Kernel) -> None:
    kernel("import time")
    ran = kernel(
        "%%energy\nbegan_s = time.monotonic()\ntime.sleep(1.0)\ntook_s = time.monotonic() - began_s"
    ).report
    assert ran["time_s"] == pytest.approx(float(kernel("took_s").value or "nan"), abs=0.2)
    assert abs(ran["energy_j"] - 26.0 * ran["time_s"]) < ran["energy_uncertainty_j"] + 0.01 * ran["energy_j"]


def test_the_magic_called_from_code_measures_too(kernel: Kernel) -> None:
    ran = kernel("get_ipython().run_cell_magic('energy', 'coded', 'y = 7')\ny")
    assert ran.value == "7"


def test_cells_inside_of_a_cell_do_not_end_it(kernel: Kernel) -> None:
    ran = kernel("%%energy outer\nimport time\nfor inner in ('', '1', '%%energy inner\\n2'):\n"
                 "    get_ipython().run_cell(inner)\ntime.sleep(0.3)")
    assert ran.report["label"] == "outer"
    assert ran.report["time_s"] >= 0.3


def test_a_file_that_holds_the_line_keeps_it(kernel: Kernel) -> None:
    kernel("%%energy\n%%writefile cell.txt\n%%energy\nx")
    assert kernel("open('cell.txt').read()").value == repr("%%energy\nx\n")


IN_A_THREAD = """
import threading
def beside(cell):
    thread = threading.Thread(target=get_ipython().run_cell, args=(cell,))
    thread.start()
    thread.join()
"""


def test_a_cell_in_another_thread_does_not_end_it(kernel: Kernel) -> None:
    kernel(IN_A_THREAD)
    ran = kernel("%%energy outer\nimport time\nbeside('y = 1')\nbeside('%%energy\\n2')\ntime.sleep(0.3)")
    assert "not measured: another" in ran.text
    assert ran.report["label"] == "outer"
    assert ran.report["time_s"] >= 0.3


def test_a_cell_without_a_result_was_cancelled(kernel: Kernel) -> None:
    """A front end can cancel a cell that awaits; the event then has no result."""
    ran = kernel("%%energy -o cancelled\nawaits = 1\nget_ipython().events.trigger('post_run_cell', None)")
    assert ran.report["outcome"] == "interrupted"
    assert kernel("cancelled.outcome").value == "'interrupted'"


INTERRUPT = """
import os, signal
from workbench.measurement import session
meter, real = session.current().meter, {}
def interrupt(name, when=lambda **options: True):
    original = getattr(meter, name)
    def once(*arguments, **options):
        if not when(**options):
            return original(*arguments, **options)
        delattr(meter, name)
        os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)
    setattr(meter, name, once)
"""


def test_an_interrupt_before_the_cell_waits_until_its_window_is_open_and_ends_the_cell(kernel: Kernel) -> None:
    kernel(INTERRUPT)
    kernel("interrupt('open')")
    ran = kernel("%%energy\n6 * 7")
    assert (ran.value, len(ran.reports), "Error in callback" in ran.text) == (None, 1, False)
    assert len(kernel("%%energy\n1").reports) == 1


@pytest.mark.parametrize("name", ["open", "close"])
def test_an_interrupt_leaves_no_live_view_that_takes_limits(kernel: Kernel, name: str) -> None:
    kernel(INTERRUPT)
    kernel("from workbench.panels._views.power.panel import PowerView\nviews, start = [], PowerView.start\n"
           "PowerView.start = lambda view: (views.append(view), start(view))[1]")
    kernel(f"interrupt({name!r})")
    kernel("%%energy --live\n1")
    kernel("PowerView.start = start; import threading")
    taken = "views[0].takes_limits"
    assert kernel(f"len(views), views[0].running, {taken}").value == "(1, False, False)"
    assert kernel("[thread.name for thread in threading.enumerate() if thread.name == 'panel']").value == "[]"


@pytest.mark.parametrize("name", ["close", "measure"])
def test_an_interrupt_while_a_cell_is_closed_loses_nothing(kernel: Kernel, name: str) -> None:
    kernel(INTERRUPT)
    kernel(f"mine = session.current(); interrupt({name!r})")
    ran = kernel(
        "%%energy --repeat 3 -o kept\nn_runs = globals().get('n_runs', 0) + "
        "1\nmine.set_power_limit(mine.devices[0].uuid, 150.0)"
    )
    assert ran.report["repeats"] == 1
    assert "run 2 of 3" in ran.reports[0]["text/plain"]
    assert kernel("kept.repeats, mine.devices[0].setting().power_limit_w").value == "(1, 250.0)"


def test_a_limit_set_by_a_cell_is_restored_only_after_its_last_run(kernel: Kernel) -> None:
    kernel(
        "from workbench.measurement import session; from workbench.device import lease as control; from "
        "workbench.records import Setting\n"
        "mine = session.current(); gpu = mine.devices[0]; seen = []"
    )
    kernel("control.change(gpu, Setting(power_limit_w=200.0)); None")
    kernel(
        "%%energy --repeat 3\nseen.append(gpu.setting().power_limit_w)\nmine.set_power_limit(gpu.uuid, "
        "150.0);"
    )
    assert kernel("seen, gpu.setting().power_limit_w").value == "([200.0, 150.0, 150.0], 200.0)"
    kernel("%gpu restore")
    assert kernel("gpu.setting().power_limit_w").value == "250.0"


def test_a_sampling_process_that_dies_in_a_cell_leaves_its_trace(kernel: Kernel) -> None:
    ran = kernel(
        "%%energy -o orphan\nimport os, signal, time\nfrom workbench.measurement import "
        "session\ntime.sleep(0.5)\n"
        "os.kill(session.current().recorder.pid, signal.SIGKILL); time.sleep(0.3)"
    )
    assert ran.report["energy_j"] is not None
    height = kernel("from workbench.logbook.store import Store; Store().trace(orphan.id).height").value
    assert int(height or 0) > 3
    assert kernel("%%energy\n1").report["gpus"][0]["samples"] >= 0
    assert kernel("session.current().recorder.running").value == "True"


# options


@pytest.mark.parametrize("line", ["--bogus", "train --tuen", "-o 3x", "--repeat 0", "--repeat", "--gpus 9"])
def test_a_cell_with_a_wrong_option_does_not_run(kernel: Kernel, line: str) -> None:
    kernel("ran = False")
    refused = kernel(f"%%energy {line}\nran = True")
    assert (refused.status, refused.reports) == ("error", [])
    assert line.split()[-1] in refused.error
    assert kernel("ran").value == "False"


def test_a_cell_can_be_repeated(kernel: Kernel) -> None:
    ran = kernel("%%energy --repeat 3\nn = globals().get('n', 0) + 1\nprint('run', n)")
    assert ran.text == "run 1\nrun 2\nrun 3\n"
    assert ran.report["repeats"] == 3
    assert ran.report["time_sd_s"] is not None
    assert "mean of 3 runs" in ran.reports[0]["text/plain"]


def test_a_repetition_that_fails_is_left_out_and_reported(kernel: Kernel) -> None:
    ran = kernel("%%energy --repeat 4\nk = globals().get('k', 0) + 1\nif k == 3: raise ValueError('third')")
    assert ran.status == "ok"
    assert ran.report["repeats"] == 2
    assert "run 3 of 4" in ran.reports[0]["text/plain"]


def test_a_cell_that_awaits_is_measured_once(kernel: Kernel) -> None:
    ran = kernel("%%energy --repeat 3\nimport asyncio\nawait asyncio.sleep(0)")
    assert ran.report["repeats"] == 1
    assert "top-level await" in ran.reports[0]["text/plain"]


def test_quiet_shows_nothing_and_keeps_everything(kernel: Kernel) -> None:
    ran = kernel("%%energy hushed -q -o hushed\n8")
    assert (ran.value, ran.reports, ran.text) == ("8", [], "")
    assert kernel("hushed.label").value == "'hushed'"
    assert kernel("%energy_log --label hushed").status == "ok"
    assert kernel("_.height").value == "1"


def test_a_measurement_in_a_variable_shows_itself(kernel: Kernel) -> None:
    kernel("%%energy seen -o seen\npass")
    ran = kernel("seen")
    (data,) = [content["data"] for kind, content in ran.outputs if kind == "execute_result"]
    assert data["text/plain"].startswith("seen: ")
    assert "text/html" in data
    assert kernel("type(seen).__name__, seen.simulated").value == "('Measurement', True)"


# %energy


def test_a_statement_is_measured_and_its_value_returned(kernel: Kernel) -> None:
    ran = kernel("%energy -o stated sum(range(10))")
    assert ran.value == "45"
    assert ran.report["label"] == "sum(range(10))"
    assert kernel("z = %energy -q 6 * 7\nz").value == "42"
    assert kernel("%energy q = 5\nq").value == "5"
    assert kernel("stated.label").value == "'sum(range(10))'"


def test_a_statement_can_be_repeated_and_can_fail(kernel: Kernel) -> None:
    assert kernel("%energy -r 3 sum(range(10))").report["repeats"] == 3
    ran = kernel("%energy 1 / 0")
    assert (ran.status, ran.reply["ename"], ran.report["outcome"]) == ("error", "ZeroDivisionError", "error")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("%energy", "`%energy train()`"),
        ("%energy --bogus f()", "--bogus"),
        ("%energy --repeat 0 f()", "--repeat 0: "),
    ],
)
def test_a_line_that_makes_no_sense_is_a_usage_error(kernel: Kernel, line: str, part: str) -> None:
    ran = kernel(line)
    assert ran.reply["ename"] == "UsageError"
    assert part in ran.reply["evalue"]


# %energy_log and %gpu


def test_the_log_is_a_frame_and_can_be_narrowed_and_exported(kernel: Kernel) -> None:
    for number in range(3):
        kernel(f"%%energy logged -q\n{number}")
    found = kernel("log = %energy_log --label logged\nlog.height, log['label'].unique().to_list()")
    assert found.value == "(3, ['logged'])"
    assert kernel("%energy_log --last 2").status == "ok"
    assert kernel("_.height").value == "2"
    exported = kernel(
        "log = %energy_log --label logged --export logged.csv\nimport os; os.path.abspath('logged.csv')"
    )
    assert exported.text.startswith("3 ")
    assert "logged.csv" in exported.text
    assert pl.read_csv(str(exported.value).strip("'"))["label"].to_list() == ["logged"] * 3


def test_two_measurements_are_compared(kernel: Kernel) -> None:
    for label, seconds in (("short", 0.3), ("long", 0.9)):
        counted = f"import time, workbench; time.sleep({seconds}); workbench.work(samples=8)"
        kernel(f"%%energy {label} -q\n{counted}")
    ran = kernel("%energy_log --compare short long")
    assert ran.text.startswith("long against short: ")
    assert re.search(r"\+\d+\.\d % time", ran.text)  # the energy, where the machine had time
    assert ran.value is None


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("%energy_log --compare short nobody", "'nobody'"),
        ("%energy_log --export e.xlsx", ".parquet, .csv, .json"),
        ("%energy_log --last many", "many: give a whole number"),
        ("%energy_log --bogus", "--bogus"),
        ("%energy_log 'open", "No closing quotation"),
        ("%gpu simulate Z9000", "Z9000"),
        ("%gpu simulate", "Use %gpu, %gpu simulate CARD"),
        ("%gpu advise much", "Use %gpu, %gpu simulate CARD"),
        ("%gpu nonsense", "Use %gpu, %gpu simulate CARD"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error_in_a_sentence(kernel: Kernel, line: str, part: str) -> None:
    kernel("%%energy short -q\n1")
    ran = kernel(line)
    assert (ran.status, ran.reply["ename"]) == ("error", "UsageError")
    assert part in ran.reply["evalue"]


def test_the_gpus_are_listed_and_restored(kernel: Kernel) -> None:
    shown = kernel("%gpu").text
    assert "100..250 W" in shown
    assert "(simulated)" in shown
    limit = (
        "from workbench.measurement import session; mine = session.current(); "
        "mine.set_power_limit(mine.devices[0].uuid, 150.0)"
    )
    assert kernel(limit).value == "150.0"
    assert "power limit 150 W" in kernel("%gpu").text
    kernel("%gpu restore")
    assert "power limit 250 W" in kernel("%gpu").text


def test_a_gpu_that_is_idle_is_given_no_advice(kernel: Kernel) -> None:
    assert "is idle" in kernel("%gpu advise").text


# configuration, help, completion


def test_price_and_carbon_are_shown_once_they_are_configured(kernel: Kernel) -> None:
    assert "EUR" not in kernel("%%energy\n1").reports[0]["text/plain"]
    kernel("%config EnergyMagics.price_per_kwh = 0.3\n%config EnergyMagics.g_co2_per_kwh = 400.0")
    shown = kernel("%%energy\n1").reports[0]["text/plain"]
    assert " EUR, " in shown
    assert " gCO2, " in shown


def test_quiet_can_be_the_default(kernel: Kernel) -> None:
    kernel("%config EnergyMagics.quiet = True")
    assert kernel("%%energy\n1").reports == []


def test_a_trait_of_the_wrong_kind_is_refused(kernel: Kernel) -> None:
    assert "'perhaps'" in kernel("%config EnergyMagics.live = 'perhaps'").text
    assert kernel("%config EnergyMagics.live").value == "False"
    kernel("%config EnergyMagics.live = False")


@pytest.mark.parametrize("name", ["%%energy", "%energy", "%energy_log", "%gpu"])
def test_help_is_there(kernel: Kernel, name: str) -> None:
    ran = kernel(f"{name}?")
    (page,) = ran.reply["payload"]
    text = page["data"]["text/plain"]
    assert "Docstring" in text
    for word in {"%%energy": ("--repeat", "--gpus", "--live", "95 %"), "%energy": ("[options]",),
                 "%energy_log": ("--compare A B", "--export FILE"), "%gpu": ("simulate", "restore")}[name]:
        assert word in text


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("%%energy --re", {"--repeat"}),
        ("%%energy --", {"--gpus", "--live", "--no-live", "--repeat", "--quiet", "--sync", "--no-settle"}),
        ("%energy --q", {"--quiet"}),
        ("%energy_log --c", {"--compare"}),
        ("%gpu s", {"simulate"}),
        ("%gpu simulate H", {"H100"}),
    ],
)
def test_options_are_completed(kernel: Kernel, line: str, completions: set[str]) -> None:
    content = kernel.client.complete(line, len(line), reply=True, timeout=TIMEOUT_S)["content"]
    assert completions <= set(content["matches"])


# what is loaded is taken away again


def test_loading_twice_is_loading_once(kernel: Kernel) -> None:
    assert "already loaded" in kernel("%load_ext kernels_ext").text
    kernel("%reload_ext kernels_ext\n%config EnergyMagics.live = False")
    ran = kernel("%%energy\n1")
    assert len(ran.reports) == 1
    assert kernel("import workbench; workbench.load_ipython_extension(get_ipython())").status == "ok"
    assert len(kernel("%%energy --no-live\n1").reports) == 1


LEFT = """
import glob, os
shell = get_ipython()
def left():
    hooks = [str(hook) for hooks in shell.events.callbacks.values() for hook in hooks if "kernels_ext" in str(hook)]
    transformers = [f for f in shell.input_transformers_cleanup if f.__module__.startswith("kernels_ext")]
    magics = [name for kind in shell.magics_manager.magics.values() for name in kind if name in ("energy", "energy_log", "gpu")]
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    files = glob.glob(f"/dev/shm/workbench-*-{os.getpid()}-*")
    configurables = [c for c in shell.configurables if type(c).__name__ == "EnergyMagics"]
    return len(hooks), len(transformers), sorted(magics), len(children), len(files), len(configurables)
"""


def test_unloading_leaves_nothing(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel(LEFT)
    before = kernel("left()").value
    kernel("%load_ext workbench\n%gpu simulate V100\n%config EnergyMagics.live = False")
    kernel("%%energy\n1")
    kernel(
        "from workbench.measurement import session; mine = session.current(); "
        "mine.set_power_limit(mine.devices[0].uuid, 150.0)\n"
        "sampler = mine.recorder.pid"
    )
    magics = ["energy", "energy", "energy_log", "gpu"]
    assert kernel("left()").value == str((4, 1, magics, 2, 2, 1))  # sampler and watchdog
    assert kernel("%unload_ext workbench").text == ""
    assert kernel("left()").value == before == "(0, 0, [], 0, 0, 0)"
    assert kernel("%%energy\n1").reply["ename"] == "UsageError"  # there is no such magic any more
    assert kernel("os.environ.get('WORKBENCH_SIMULATED_GPUS')").value is None
    kernel("%load_ext workbench\n%config EnergyMagics.live = False")
    assert len(kernel("%%energy\n1").reports) == 1


# without a GPU, and with a machine that was chosen before


def test_without_a_gpu_there_is_a_time_the_reason_and_never_a_joule(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel(
        "from workbench.measurement import session\nsession.devices, session.why_no_gpu = list, lambda: 'no driver'"
    )
    kernel("%load_ext kernels_ext")
    ran = kernel("%%energy train\n7")
    assert ran.value == "7"
    assert (ran.report["energy_j"], ran.report["gpus"]) == (None, [])
    (shown,) = ran.reports
    assert "energy: no driver" in shown["text/plain"]
    assert " J" not in shown["text/plain"]
    for text in (shown["text/plain"], kernel("%gpu").text):
        assert "no driver" in text
        assert "%gpu simulate" in text
    assert kernel("%gpu restore").status == "ok"


def test_simulated_gpus_chosen_before_are_reported_on_load(
    start: Callable[..., Kernel], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from workbench.simulation import machine as machines

    path = tmp_path_factory.mktemp("machine") / "gpus"
    machines.create("H100,A40", path)
    kernel = start(WORKBENCH_SIMULATED_GPUS=str(path))
    assert "simulated" in kernel("%load_ext kernels_ext").text
    kernel("%config EnergyMagics.live = False")
    both = kernel("%%energy\n1").report
    assert [gpu["name"].split()[1] for gpu in both["gpus"]] == ["H100", "A40"]
    one = kernel("%%energy --gpu 1\n1").report
    assert [gpu["name"].split()[1] for gpu in one["gpus"]] == ["A40"]
    kernel("%unload_ext kernels_ext")
    assert path.exists()  # not this kernel's to remove


def test_a_kernel_that_ends_takes_everything_with_it(start: Callable[..., Kernel]) -> None:
    from workbench._processes import runs as alive
    from workbench._shared_memory import directory as shared_directory

    kernel = start()
    kernel("%load_ext kernels_ext\n%gpu simulate V100\n%config EnergyMagics.live = False")
    kernel("%%energy\n1")
    ran = kernel(
        "import os; from workbench.measurement import session; os.getpid(), session.current().recorder.pid"
    )
    pid, sampler = (int(number) for number in str(ran.value).strip("()").split(","))
    kernel.manager.shutdown_kernel(now=False)
    assert gone(lambda: alive(sampler))
    assert gone(lambda: bool(list(shared_directory().glob(f"workbench-*-{pid}-*"))))


def test_a_kernel_whose_simulated_gpus_are_gone_gets_new_ones(start: Callable[..., Kernel]) -> None:
    kernel = start(WORKBENCH_SIMULATED_GPUS="/dev/shm/workbench-gpus-1-gone")
    kernel("%load_ext workbench")
    assert "`%gpu simulate A100`" in (kernel("%gpu").error or "")
    assert "GPU 0: NVIDIA A100" in kernel("%gpu simulate A100").text
    assert kernel("%gpu").text.startswith("GPU 0: NVIDIA A100")


def test_a_cell_that_replaces_the_gpus_has_a_time_and_the_reason(kernel: Kernel) -> None:
    ran = kernel("%%energy --repeat 2\nworkbench.simulate('V100')\n7")
    assert (ran.value, ran.report["energy_j"]) == ("7", None)
    assert re.search(r"choose them before|call simulate\(\) before", ran.reports[0]["text/plain"])


# %energy_compare


def test_two_functions_are_compared(kernel: Kernel) -> None:
    kernel("%gpu simulate V100", silent=True)
    kernel("import time\ndef short():\n    time.sleep(0.1)\ndef long():\n    time.sleep(0.3)", silent=True)
    ran = kernel("%energy_compare short long --paired 2")
    assert ran.status == "ok", ran.error
    assert any(part in ran.value for part in ("long takes", "long against short", "compared yet"))
    assert kernel("_.runs.height").value in ("2", "4")


def test_two_cells_are_run_again_by_their_labels(kernel: Kernel) -> None:
    kernel("%gpu simulate V100\ncount = 0", silent=True)
    for name in ("one", "two"):
        kernel(f"%%energy {name} -q\nimport time\ncount += 1\ntime.sleep(0.2)")
    ran = kernel("%energy_compare one two --paired 2")
    assert ran.status == "ok", ran.error
    assert int(kernel("count").value or 0) > 6


def test_a_cell_that_was_never_measured_is_named(kernel: Kernel) -> None:
    ran = kernel("%energy_compare never other --paired 2")
    assert ran.status == "error"
    assert "never" in ran.error
