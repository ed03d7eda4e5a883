"""The programs of the pages about Spark run: in this process, which has a session, over the capture that the tutorial makes."""

import re

import pytest

from .tutorial import DOCS, Tutorial, programs_of

OURS = "run by tests/integration/spark"


@pytest.mark.usefixtures("spark")
def test_the_programs_about_spark_run(
    tutorial: Tutorial, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tutorial.folder)
    said = tutorial.ended.stdout
    assert '"ok":13' in said
    assert '"frames":32' in said
    assert '"exchanges":15' in said
    assert '"provisional":0' in said
    page = (DOCS / "tutorial/what-happened.md").read_text()
    assert "32 frames: 32 messages" in page
    assert "\n15 exchanges: 13 ok, 2 error\n" in page
    printed = []
    pages = ("tutorial/what-happened.md", "how-to/questions.md", "how-to/spark.md")
    for program in (program for page in pages for program in programs_of(page)):
        if program.info.endswith(OURS):
            # Workers stay in the folder in which the session was started.
            text = program.text.replace('load("captures")', f"load({str(tutorial.folder / 'captures')!r})")
            # Yesterday was today, for whoever asks tomorrow; and the day before, should it be midnight now.
            text = text.replace("timedelta(days=1)", "timedelta(days=2)")
            text = text.replace("datetime.now(UTC)", "(datetime.now(UTC) + timedelta(days=1))")
            exec(compile(text, program.file_name, "exec"), {})
            printed.append(capsys.readouterr().out)
    by_outcome, slow, longest, asked, errors, counted = printed
    assert by_outcome.count("tank.get") == 2
    latencies = [float(found) for found in re.findall(r"\|tank\.get\|\s*([0-9.]+)", slow)]
    assert latencies[2] >= 200, "three have waited for 200 ms; a busy machine adds to them, and to the others"
    assert latencies == sorted(latencies, reverse=True)
    assert "('tank.get', 2" in longest
    assert errors.count("NOT_FOUND") == 2
    assert "NULL" not in errors
    assert re.search(r"\|\s*tank\.get\|\s*\d+\|", asked)
    assert (tutorial.folder / "captures/events/segment-00000000.parquet").exists()
    assert "32 frames, 0 late" in counted


def test_the_job_of_the_page_is_the_example() -> None:
    [job] = [program for program in programs_of("how-to/spark.md") if "spark-submit" in program.info]
    example = (DOCS.parent / "examples" / "analyse_job.py").read_text()
    assert example.partition("\n\n")[2] == job.text
