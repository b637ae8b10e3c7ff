"""The report of `forebay bench run --html`, opened in Chromium without a window: every chart has ink, on paper too, and nobody complains."""
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path

PATIENCE_S = 120
# Title of each chart that a run with two settings and several publishers must show.
CHARTS = ["Throughput over time", "p99 latency over time", "Median latency over time", "Throughput against latency", "Latency by percentile",
          "Fairness between publishers", "Where messages wait", "CPU and memory"]  # fmt: skip
ENQUEUE = ["enqueued, /s", "p50, ms", "p99, ms"]
NOTE = "there was no Erlang to compare with"
# Appended to a copy of the page: how many pixels of each canvas are drawn on, and which colour text has.
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const inked = (canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.filter((value, index) => index % 4 === 3 && value > 0).length;
  document.documentElement.dataset.ink = [...document.querySelectorAll("canvas")].map(inked).join(" ");
  document.documentElement.dataset.ground = getComputedStyle(document.body).backgroundColor;
}, 300));</script></body>"""


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    raise RuntimeError("there is no Chromium here (scripts/setup-tests.sh installs it)")


def browse(page, directory, *flags):
    command = [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}/profile", "--virtual-time-budget=4000"]
    done = subprocess.run([*command, *flags, page.as_uri()], timeout=PATIENCE_S, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Chromium ended with code {done.returncode}: {done.stderr[-2000:]}")
    return done


def opened(page, directory, dark):
    """The page after its scripts have run, and what they wrote to the console."""
    done = browse(page, directory, f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr", "--dump-dom")
    return done.stdout, [line for line in done.stderr.split("\n") if "CONSOLE" in line]


def print_out(page, directory):
    """Lines, curves and pieces of text on each sheet of paper."""
    path = Path(directory) / "report.pdf"
    browse(page, directory, "--no-pdf-header-footer", f"--print-to-pdf={path}")
    pdf, sheets = path.read_bytes(), []
    for number in re.findall(rb"/Type /Page\n.*?/Contents (\d+) 0 R", pdf, re.S):
        drawn = re.search(rb"\n%s 0 obj\n<<[^>]*>>\s*stream\r?\n(.*?)endstream" % number, pdf, re.S)
        # What ends a stream is told by its own format: its last byte may look like the end of a line before `endstream`.
        drawn = zlib.decompressobj().decompress(drawn[1])
        sheets.append((len(re.findall(rb"\b[lc]\n", drawn)), len(re.findall(rb" Tj\n", drawn))))
    return sheets


def check(binary, directory):
    """A load, an experiment, and both in one report, each in light and dark."""
    load = ["-x", "4", "-y", "2", "--queues", "2", "--rate", "200", "--seconds", "3", "--warm-up", "0.2", "--grid", "window=5"]
    page, records = Path(directory) / "report.html", [Path(directory) / "load.json", Path(directory) / "enqueue.json"]
    bench(binary, "run", *load, "--dir", directory, "--html", page, "--json", records[0])
    look(page, directory, CHARTS)
    bench(binary, "run", "enqueue", "--seconds", "0.3", "--repeat", "2", "--dir", directory, "--html", page, "--json", records[1])
    look(page, directory, ENQUEUE)
    # What could not be measured is told as well.
    record = json.loads(records[1].read_text())
    record["found"][0]["answers"][0]["Ok"]["notes"] = [NOTE]
    records[1].write_text(json.dumps(record))
    bench(binary, "report", *records, "--html", page)
    look(page, directory, ["Throughput over time, with nothing set", "p99 latency over time, with nothing set", *CHARTS, *ENQUEUE], f">note {NOTE}<")


def bench(binary, *arguments):
    done = subprocess.run([binary, "bench", *map(str, arguments)], timeout=PATIENCE_S, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"bench ended with code {done.returncode}: {done.stderr}")


def look(page, directory, titles, text=""):
    page.write_text(page.read_text().replace("</body>", PROBE))
    grounds = []
    for dark in (False, True):
        document, console = opened(page, directory, dark)
        if console:
            raise RuntimeError("the page complains: " + "; ".join(console))
        missing = [title for title in titles if f"<h3>{title}" not in document]
        if missing:
            raise RuntimeError(f"no such chart: {missing}")
        if text not in document:
            raise RuntimeError(f"it does not say: {text}")
        found = re.search(r'data-charts="(\d+)"', document)
        ink = re.search(r'data-ink="([\d ]+)"', document)
        if not found or not ink:
            raise RuntimeError("the page did not come to its end")
        drawn = [int(pixels) for pixels in ink[1].split()]
        # A chart with nothing but axes has some hundreds.
        if len(drawn) != int(found[1]) or len(drawn) < len(titles) or min(drawn) < 3000:
            raise RuntimeError(f"{found[1]} charts, and this many pixels drawn on in each canvas: {drawn}")
        grounds.append(re.search(r'data-ground="([^"]+)"', document)[1])
    sheets = print_out(page, directory)
    if not sheets or min(lines for lines, _ in sheets) < 50 or min(texts for _, texts in sheets) < 5:
        raise RuntimeError(f"lines and pieces of text on each printed sheet: {sheets}")
    if grounds[0] == grounds[1]:
        raise RuntimeError(f"light and dark look the same: {grounds[0]}")
