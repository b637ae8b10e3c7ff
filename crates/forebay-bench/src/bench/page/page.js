"use strict";
// Draws the report of `forebay bench run --html`. The data are in the page; nothing is fetched.
//
//   several records ─▶ a table of what tunes itself, and its throughput over time; then each record as follows
//   experiment ─▶ table and demands of each broker ─▶ a chart for each figure
//   phase ─▶ verdicts ─▶ table ─▶ charts: all series together, then what belongs to one series
const records = JSON.parse(document.getElementById("data").textContent);
const SERIES_SHOWN_MAX = 8; // more lines than that cannot be told apart
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 4], [12, 4], [3, 6]]; // so that paper tells them apart, too
const charts = []; // { figure, make }

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const number = (value, digits) => (value == null ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const ms = (us) => { if (us == null) return "–"; const value = us / 1000; return number(value, value < 10 ? 2 : value < 100 ? 1 : 0); };
const runsOf = (count) => (count === 1 ? "1 run" : `${count} runs`);
const percent = (value) => (value == null ? "–" : `${number(value * 100, 1)} %`);
const short = (value) => (value == null ? "" : value >= 1e6 ? `${+(value / 1e6).toPrecision(3)} M` : value >= 1e3 ? `${+(value / 1e3).toPrecision(3)} k` : `${+value.toPrecision(3)}`);

function axis(label, options) {
  return {
    label, labelSize: 20, labelFont: "12px system-ui, sans-serif", font: "11px system-ui, sans-serif", labelGap: 0,
    stroke: () => colour("quiet"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { stroke: () => colour("grid"), width: 1 },
    size: 58, values: (u, ticks) => ticks.map(short), ...options,
  };
}

// ---- one chart. `series`: { label, colour, values, dash, scale, points, width }
function chart(place, title, note, x, y, series, extra = {}) {
  const drawn = series.filter((one) => one.values.some((value) => value != null));
  if (drawn.length === 0 || x.values.length === 0) return;
  const box = element("div", {});
  const figure = element("figure", {}, element("figcaption", {}, element("h3", {}, title), element("p", {}, note)), box);
  place.append(figure);
  const lines = drawn.map((one) => ({
    label: one.label, stroke: () => colour(one.colour), width: one.width ?? 2, dash: one.dash, scale: one.scale ?? "y", spanGaps: !one.gaps,
    fill: one.points === "only" ? undefined : one.fill && (() => `${colour(one.colour)}33`),
    paths: one.points === "only" ? () => null : one.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: Boolean(one.points) || x.values.length < 2, size: one.pointSize ?? 8, fill: () => colour(one.colour) },
    value: (u, value) => (value == null ? "–" : (one.scale === "second" ? (y.second.show ?? short) : y.show ?? short)(value)),
  }));
  const make = () => {
    box.replaceChildren();
    const width = Math.max(280, figure.clientWidth - 28);
    const scales = { x: { time: false, ...x.scale }, y: { ...(y.scale ?? { range: (u, least, most) => [0, most > 0 ? most * 1.08 : 1] }) } };
    const axes = [axis(x.label, { size: 38, ...x.axis }), axis(y.label, y.axis)];
    if (y.second) {
      scales.second = { range: (u, least, most) => [0, most > 0 ? most * 1.08 : 1] };
      axes.push(axis(y.second.label, { side: 1, scale: "second", grid: { show: false } }));
    }
    return new uPlot({
      width, height: 280, scales, axes, padding: [10, 10, 0, 0], legend: { live: false, markers: { width: 0, fill: (u, index) => u.series[index].stroke(u, index) } }, cursor: { points: { size: 7 }, drag: { setScale: true } },
      series: [{ label: x.label, value: (u, value) => short(value) }, ...lines],
      hooks: { draw: [(u) => { extra.draw?.(u); box.dataset.drawn = "yes"; }] },
    }, [x.values, ...drawn.map((one) => one.values)], box);
  };
  charts.push({ make, chart: null });
}

// ---- what is in the data
function report(run) { return run.outcome.report; }
function latencyOf(of, intended) {
  const confirms = of.plan.rpc || of.plan.consumers === 0;
  return confirms ? (intended ? of.confirm : of.confirm_from_call) : intended ? of.end_to_end : of.end_to_end_from_call;
}
const byConfirms = (plan) => plan.rpc || (plan.consumers === 0 && plan.window !== "none");
function rateOf(of) { return byConfirms(of.plan) ? of.confirmed_per_s : of.plan.consumers > 0 ? of.consumed_per_s : of.published_per_s; }
function median(values) {
  const sorted = values.filter((value) => value != null).sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length === 0 ? null : sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// The series of a phase: one for each broker and setting, with what tells it apart from the others as its name.
function seriesOf(data, phase) {
  const all = phase.brokers.flatMap((broker) => broker.points.map((point) => ({ broker, point, runs: point.runs.map((index) => data.record.runs[index]) })));
  const differs = (of) => new Set(all.map(of)).size > 1;
  const setting = (one) => one.point.setting;
  const ack = (one) => (setting(one).ack_every ? setting(one).ack_every : "auto");
  for (const one of all) {
    const parts = [];
    if (phase.brokers.length > 1) parts.push(one.broker.name);
    if (differs((other) => setting(other).window) || phase.brokers.length === 1) parts.push(`window ${setting(one).window}`);
    if (differs((other) => setting(other).prefetch)) parts.push(`prefetch ${setting(one).prefetch}`);
    if (differs(ack)) parts.push(`ack ${ack(one)}`);
    one.name = parts.join(", ");
    one.reports = one.runs.map(report).filter(Boolean);
    one.tuned = one.point.tuned;
    one.of = (what) => median(one.reports.map(what));
  }
  let chosen = all.filter((one) => one.reports.length > 0);
  if (chosen.length > SERIES_SHOWN_MAX) {
    const fixed = chosen.filter((one) => !one.tuned && !one.point.knee && !one.point.best);
    const room = SERIES_SHOWN_MAX - (chosen.length - fixed.length);
    const every = fixed.length / Math.max(room, 1);
    const kept = new Set(Array.from({ length: Math.max(room, 0) }, (_, index) => fixed[Math.floor(index * every)]));
    chosen = chosen.filter((one) => !fixed.includes(one) || kept.has(one));
  }
  chosen.forEach((one, index) => { one.colour = `c${index % SERIES_SHOWN_MAX}`; one.dash = DASHES[index % DASHES.length]; });
  return { all, chosen };
}

function table(all, intended) {
  const heads = ["", "published /s", "consumed /s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms", "confirm p99 ms", "varies", "fairness", "broker cores", "µs CPU/msg", "broker MB", "generator cores"];
  const rows = all.map((one) => {
    const name = element("td", {});
    if (one.colour) name.append(element("span", { class: "key", style: `background: var(--${one.colour})` }));
    name.append(one.name);
    for (const [is, text] of [[one.tuned, "tunes itself"], [one.point.knee, "knee"]]) if (is) name.append(element("span", { class: "mark" }, text));
    const failed = one.runs.length - one.reports.length;
    if (failed > 0) name.append(element("span", { class: "mark failed" }, `${failed} of ${one.runs.length} runs failed`));
    if (one.reports.length === 0) return element("tr", {}, name, element("td", { colspan: heads.length - 1, class: "failed" }, one.runs[0].outcome.failed ?? ""));
    const timed = (latency, what) => (latency.count > 0 ? latency[what] : null);
    const latency = (what) => ms(one.of((of) => timed(latencyOf(of, intended), what)));
    const cells = [
      number(one.of((of) => of.published_per_s), 0), number(one.of((of) => of.consumed_per_s), 0),
      latency("p50_us"), latency("p90_us"), latency("p99_us"), latency("p999_us"), latency("max_us"),
      ms(one.of((of) => timed(intended ? of.confirm : of.confirm_from_call, "p99_us"))),
      percent(one.of((of) => (of.samples.filter((sample) => sample.seconds > 0.5).length > 1 ? of.variation : null))), number(one.of((of) => of.fairness), 3),
      number(one.of((of) => of.broker_cores), 2), number(one.of((of) => of.broker_cpu_us_per_message), 2),
      number(one.of((of) => (of.broker_bytes_max == null ? null : of.broker_bytes_max / 1e6)), 0), number(one.of((of) => of.generator_cores), 2),
    ];
    return element("tr", {}, name, ...cells.map((text) => element("td", {}, text)));
  });
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", {}, text)))), element("tbody", {}, ...rows)));
}

// Samples of several runs on one time axis, in whole seconds.
function overTime(shown, value) {
  const seconds = Math.max(...shown.map((one) => one.reports[0].samples.length));
  return { x: Array.from({ length: seconds }, (_, index) => index + 1), of: (one) => Array.from({ length: seconds }, (_, index) => {
    const sample = one.reports[0].samples[index];
    return sample && sample.seconds > 0.5 ? value(sample, one) : null;
  }) };
}

function timeChart(place, shown, title, note, label, value, show, logarithmic) {
  const time = overTime(shown, value);
  const scale = logarithmic ? { distr: 3 } : undefined;
  const axisOptions = logarithmic ? logarithmicAxis : {};
  chart(place, title, note, { label: "seconds", values: time.x, axis: wholeSeconds }, { label, show, scale, axis: axisOptions },
    shown.map((one) => ({ label: one.name, colour: one.colour, dash: one.dash, values: time.of(one), width: one.tuned ? 3 : 2, gaps: true })));
}

const isPower = (tick) => tick > 0 && Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9;
const logarithmicAxis = { grid: { stroke: () => colour("grid"), width: 1, filter: (u, ticks) => ticks.map((tick) => (isPower(tick) ? tick : null)) }, values: (u, ticks) => ticks.map((tick) => (isPower(tick) ? short(tick) : "")) };
const wholeSeconds = { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], size: 38 };
const positive = (value) => (value > 0 ? value : null);

function knee(data, place, all, intended) {
  const points = all.filter((one) => one.reports.length > 0)
    .map((one) => ({ one, x: one.of((of) => latencyOf(of, intended).p99_us) / 1000, y: one.of(rateOf) })).filter((point) => point.x > 0).sort((a, b) => a.x - b.x);
  if (points.length < 2) return;
  const values = (keep) => points.map((point) => (keep(point.one) ? point.y : null));
  const draw = (u) => {
    const context = u.ctx;
    const ratio = devicePixelRatio;
    context.save();
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textAlign = "left";
    const taken = [];
    for (const { one, x, y } of points) {
      const [px, py] = [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
      if (one.point.knee) {
        context.strokeStyle = colour("text");
        context.lineWidth = 1.5 * ratio;
        context.beginPath();
        context.arc(px, py, 9 * ratio, 0, 7);
        context.stroke();
      }
      const text = one.name.replace(/^window /, "") + (one.tuned ? " (tunes itself)" : "") + (one.point.knee ? " · knee" : "");
      const width = context.measureText(text).width;
      const left = px + 12 * ratio + width > u.bbox.left + u.bbox.width ? px - 12 * ratio - width : px + 12 * ratio;
      let top = py;
      const room = 12 * ratio;
      const crowded = () => taken.some((other) => Math.abs(other.top - top) < room && left < other.left + other.width && other.left < left + width);
      for (let turn = 1; crowded() && turn < 12; turn++) top = py + (turn % 2 ? 1 : -1) * Math.ceil(turn / 2) * room;
      taken.push({ left, top, width });
      context.fillStyle = colour(one.tuned ? "c0" : "text");
      context.textBaseline = "middle";
      context.fillText(text, left, top);
    }
    context.restore();
  };
  const ringed = data.record.searched ? "is the least window" : "has the lowest p99 among those";
  chart(place, "Throughput against latency", `Up and to the left is better. The knee, ringed, ${ringed} with at least 95 % of the best rate.`,
    { label: "p99 latency, ms", values: points.map((point) => point.x), scale: { distr: 3 }, axis: logarithmicAxis },
    { label: "messages a second" },
    [{ label: "set by hand", colour: "c7", values: values((one) => !one.tuned), points: "only", pointSize: 9 },
      { label: "tunes itself", colour: "c0", values: values((one) => one.tuned), points: "only", pointSize: 12 }], { draw });
}

// The x of the percentile curve: 0 = 0 %, 1 = 90 %, 2 = 99 %, 3 = 99.9 %.
function percentiles(place, shown, intended) {
  const curves = shown.map((one) => (intended ? one.reports[0].curve : one.reports[0].curve_from_call));
  const nines = (quantile) => -Math.log10(1 - quantile);
  const xs = [...new Set(curves.flat().map(([quantile]) => nines(quantile)))].filter((x) => x <= 5).sort((a, b) => a - b);
  const values = curves.map((curve) => {
    const found = new Map(curve.map(([quantile, us]) => [nines(quantile), positive(us / 1000)]));
    return xs.map((x) => found.get(x) ?? null);
  });
  const names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"];
  chart(place, "Latency by percentile", "How slow the slowest messages of the first run were: the further right, the rarer.",
    { label: "percentile", values: xs, axis: { splits: () => [0, 1, 2, 3, 4, 5].filter((x) => x <= (xs.at(-1) ?? 0) + 0.01), values: (u, ticks) => ticks.map((tick) => names[tick] ?? "") } },
    { label: "ms", scale: { distr: 3 }, axis: logarithmicAxis },
    shown.map((one, index) => ({ label: one.name, colour: one.colour, dash: one.dash, values: values[index], width: one.tuned ? 3 : 2 })));
}

function fairness(place, shown) {
  const several = shown.filter((one) => one.reports[0].shares.length > 1);
  if (several.length === 0) return;
  const most = Math.max(...several.map((one) => one.reports[0].shares.length));
  const xs = Array.from({ length: Math.min(most, 200) }, (_, index, all) => (index / Math.max(Math.min(most, 200) - 1, 1)) * 100);
  chart(place, "Fairness between publishers", "What each publisher got in the first run, from the least to the most, in percent of the mean. A flat line is fair.",
    { label: "publishers, %", values: xs }, { label: "% of the mean" },
    several.map((one) => {
      const sorted = [...one.reports[0].shares].sort((a, b) => a - b);
      const mean = sorted.reduce((sum, share) => sum + share, 0) / sorted.length || 1;
      return { label: one.name, colour: one.colour, dash: one.dash, width: one.tuned ? 3 : 2, values: xs.map((x) => (sorted[Math.round((x / 100) * (sorted.length - 1))] / mean) * 100) };
    }));
}

// What belongs to one series: where messages wait, and what the broker uses.
function insides(place, one) {
  const samples = overTime([one], (sample) => sample);
  const rows = samples.of(one);
  const of = (what) => rows.map((sample) => (sample ? what(sample) : null));
  const x = { label: "seconds", values: samples.x, axis: wholeSeconds };
  chart(place, `Where messages wait: ${one.name}`, "In queues, unconfirmed and unacknowledged; behind: due and not yet published, so they wait at their source.", x, { label: "messages" }, [
    { label: "in queues", colour: "c0", values: of((sample) => sample.depth), width: 3 },
    { label: "unconfirmed", colour: "c1", dash: DASHES[1], values: of((sample) => sample.unconfirmed) },
    { label: "unacknowledged", colour: "c2", dash: DASHES[2], values: of((sample) => sample.unacked) },
    { label: "behind", colour: "c7", dash: DASHES[3], values: of((sample) => (one.reports[0].target_per_s == null ? null : sample.behind)) },
  ]);
  chart(place, `CPU and memory: ${one.name}`, "The generator has one core: near 1 it is the bottleneck.", x, { label: "cores", second: { label: "MB" } }, [
    { label: "broker, cores", colour: "c0", values: of((sample) => sample.broker_cores), width: 3 },
    { label: "generator, cores", colour: "c7", dash: DASHES[1], values: of((sample) => sample.generator_cores) },
    { label: "broker, MB", colour: "c1", dash: DASHES[2], scale: "second", values: of((sample) => (sample.broker_bytes == null ? null : sample.broker_bytes / 1e6)) },
  ]);
}

// ---- what experiments found: a table a broker, then each figure over the cases, all brokers together
function figuresOf(found) {
  const rows = new Map();
  for (const findings of found.answers.flatMap((answer) => answer.Ok ?? []))
    for (const one of findings.cases) for (const { name, unit, value } of one.figures) {
      const key = JSON.stringify([one.name, name]);
      if (!rows.has(key)) rows.set(key, { case: one.name, name: unit ? `${name}, ${unit}` : name, values: [] });
      rows.get(key).values.push(value);
    }
  return [...rows.values()];
}

const unique = (values) => [...new Set(values)];
const sensible = (value) => number(value, Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0);

function foundTable(rows) {
  const names = unique(rows.map((row) => row.name));
  const cell = (row) => {
    if (!row) return element("td", {}, "–");
    const spread = row.values.length > 1 ? [element("span", { class: "quiet" }, ` ${sensible(Math.min(...row.values))}–${sensible(Math.max(...row.values))}`)] : [];
    return element("td", {}, sensible(median(row.values)), ...spread);
  };
  const line = (one) => element("tr", {}, element("td", {}, one), ...names.map((name) => cell(rows.find((row) => row.case === one && row.name === name))));
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...["", ...names].map((text) => element("th", {}, text)))),
    element("tbody", {}, ...unique(rows.map((row) => row.case)).map(line))));
}

function foundChart(place, name, brokers) {
  const cases = unique(brokers.flatMap(({ rows }) => rows.filter((row) => row.name === name).map((row) => row.case)));
  if (cases.length < 2) return;
  const value = (rows, one) => { const row = rows.find((row) => row.case === one && row.name === name); return row ? median(row.values) : null; };
  const all = brokers.flatMap(({ rows }) => cases.map((one) => value(rows, one))).filter((value) => value != null);
  const far = Math.min(...all) > 0 && Math.max(...all) > 30 * Math.min(...all);
  chart(place, name, "Median of each case, from left to right as in the table.",
    { label: "case", values: cases.map((_, index) => index), scale: { range: [-0.5, cases.length - 0.5] },
      axis: { splits: () => cases.map((_, index) => index), values: (u, ticks) => ticks.map((tick) => cases[tick] ?? ""), rotate: 20, size: 84, grid: { show: false } } },
    { label: name, show: sensible, ...(far ? { scale: { distr: 3 }, axis: logarithmicAxis } : {}) },
    brokers.map(({ broker, rows }, index) => ({ label: broker, colour: `c${index % SERIES_SHOWN_MAX}`, dash: DASHES[index % DASHES.length], points: true, values: cases.map((one) => value(rows, one)) })));
}

function experiment(data, main) {
  const brokers = data.record.found.map((found) => ({ broker: found.broker, answers: found.answers, rows: figuresOf(found) }));
  for (const { broker, answers, rows } of brokers) {
    const failed = answers.filter((answer) => answer.Err != null).length;
    const of = failed > 0 ? `; ${failed} of ${answers.length} runs failed, and are in no figure` : "";
    main.append(element("h2", {}, broker), element("p", { class: "quiet" }, `Medians of ${runsOf(answers.length - failed)}, and the least and the most${of}.`), foundTable(rows));
    const verdict = (mark, text) => element("p", { class: mark === "pass" ? "verdict" : "verdict failed" }, `${mark} ${text}`);
    for (const answer of answers) {
      if (answer.Err != null) main.append(verdict("FAILED:", answer.Err));
      for (const { what, met } of answer.Ok?.demands ?? []) main.append(verdict(met ? "pass" : "FAIL", what));
      for (const note of answer.Ok?.notes ?? []) main.append(element("p", { class: "quiet" }, `note ${note}`));
    }
  }
  data.timelines.forEach((svg, index) => {
    if (svg == null) return;
    const picture = element("div", { class: "scroll" });
    picture.innerHTML = svg; // ours, with names escaped
    main.append(element("h2", {}, `Job by job on ${brokers[index].broker}`), picture);
  });
  const place = element("div", { class: "charts" });
  main.append(element("h2", {}, "Case by case"), place);
  for (const name of unique(brokers.flatMap(({ rows }) => rows.map((row) => row.name)))) foundChart(place, name, brokers);
}

// ---- several workloads beside each other, as they are with nothing set
function overview(main) {
  const shown = records.flatMap((data) => data.phases.flatMap((phase) => {
    const tuned = seriesOf(data, phase).all.filter((one) => one.tuned);
    const name = (one) => [data.record.workload, phase.name, ...(unique(records.map(({ record }) => record.occasion.broker)).length > 1 || phase.brokers.length > 1 ? [one.broker.name] : [])];
    return tuned.map((one) => ({ ...one, intended: phase.intended, name: name(one).filter(Boolean).join(", ") }));
  }));
  if (shown.length === 0) return;
  shown.forEach((one, index) => { one.colour = index < SERIES_SHOWN_MAX ? `c${index}` : undefined; one.dash = DASHES[index % DASHES.length]; });
  main.append(element("h2", {}, "Beside each other, with nothing set"));
  const intended = shown.every((one) => one.intended);
  main.append(element("p", { class: "quiet" }, `Latencies count from ${intended ? "when messages were due" : "the call"}.`), table(shown, intended));
  const place = element("div", { class: "charts" });
  main.append(place);
  const some = shown.filter((one) => one.reports.length > 0).slice(0, SERIES_SHOWN_MAX);
  if (some.length === 0) return;
  timeChart(place, some, "Throughput over time, with nothing set", "Messages a second of each workload; a steady line is what one wants under overload.", "messages a second", rateOfSecond);
  timeChart(place, some, "p99 latency over time, with nothing set", "Of each second.", "ms", (sample, one) => positive(latencyOfSecond(sample, one, intended).p99_us / 1000), short, true);
}

const rateOfSecond = (sample, one) => (byConfirms(one.reports[0].plan) ? sample.confirmed : one.reports[0].plan.consumers > 0 ? sample.consumed : sample.published);
function latencyOfSecond(sample, one, intended) {
  const confirms = one.reports[0].plan.rpc || one.reports[0].plan.consumers === 0;
  return confirms ? (intended ? sample.confirm_intended : sample.confirm) : intended ? sample.end_to_end_intended : sample.end_to_end;
}

function told(occasion) {
  return `${occasion.date} · ${occasion.broker} · ${occasion.machine.cores} cores of ${occasion.machine.cpu}, ${occasion.machine.kernel} · load before ${number(occasion.machine.load_before, 1)} · ${occasion.build} · ${occasion.command}`;
}

function workload(data, main) {
  if (data.record.found.length > 0) experiment(data, main);
  for (const phase of data.phases) {
    const { all, chosen } = seriesOf(data, phase);
    const intended = phase.intended;
    main.append(element("h2", {}, phase.name || "Figures"));
    for (const line of phase.verdicts) main.append(element("p", { class: "verdict" }, line));
    main.append(element("p", { class: "quiet" }, `Latencies count from ${intended ? "when messages were due" : "the call"}; medians of ${runsOf(Math.max(...all.map((one) => one.runs.length)))}.`));
    main.append(table(all, intended));
    const place = element("div", { class: "charts" });
    main.append(place);
    // Below the charts: on paper they begin on the sheet of the table.
    for (const line of phase.remarks) main.append(element("p", { class: "quiet" }, line));
    if (chosen.length === 0) continue;
    timeChart(place, chosen, "Throughput over time", "Messages a second of each setting's first run; a steady line is what one wants under overload.", "messages a second", rateOfSecond);
    timeChart(place, chosen, "p99 latency over time", "Of each second of the first run; a gap is a second in which nothing arrived.", "ms", (sample, one) => positive(latencyOfSecond(sample, one, intended).p99_us / 1000), short, true);
    timeChart(place, chosen, "Median latency over time", "Of each second of the first run.", "ms", (sample, one) => positive(latencyOfSecond(sample, one, intended).p50_us / 1000), short, true);
    knee(data, place, all, intended);
    percentiles(place, chosen, intended);
    fairness(place, chosen);
    for (const broker of phase.brokers) {
      const own = chosen.filter((one) => one.broker === broker);
      const one = own.find((candidate) => candidate.tuned) ?? own[0];
      if (one) insides(place, one);
    }
  }
}

function draw() {
  const main = document.getElementById("main");
  main.replaceChildren();
  if (records.length === 1) {
    document.getElementById("about").textContent = records[0].record.about;
    document.getElementById("occasion").textContent = told(records[0].record.occasion);
    workload(records[0], main);
  } else {
    overview(main);
    for (const data of records) {
      main.append(element("h1", { class: "record" }, `${data.record.workload} on ${data.record.occasion.broker}`),
        element("p", {}, data.record.about), element("p", { class: "quiet" }, told(data.record.occasion)));
      workload(data, main);
    }
  }
  // Only now has every figure the width that it will have.
  redraw();
  document.documentElement.dataset.charts = String(charts.length);
}

function redraw() {
  for (const each of charts) {
    each.chart?.destroy();
    each.chart = each.make();
  }
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
matchMedia("print").addEventListener("change", redraw);
let resized;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 150); });
