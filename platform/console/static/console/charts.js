/** Draws what stands in data-chart; the table beside it says the same to whoever cannot see it. */

import uPlot from "./vendor/uPlot.esm.js";

const HEIGHT = 190;
const COLOURS = ["--chart-1", "--chart-2", "--chart-3"];
const narrow = new Intl.NumberFormat("en-GB", { notation: "compact", maximumSignificantDigits: 3 });
const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 6 });

const WRITTEN = {
  number: (value) => whole.format(value),
  share: (value) => `${(value * 100).toFixed(1)} %`,
  seconds: (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`),
};
const SHORT = { number: (value) => narrow.format(value), money: (value) => narrow.format(value) };

const WHEN = {
  hour: { hour: "2-digit", minute: "2-digit" },
  day: { day: "numeric", month: "short", timeZone: "UTC" },
  month: { month: "short", year: "numeric", timeZone: "UTC" },
};
const SECONDS = { hour: 3600, day: 86_400, month: 30 * 86_400 };
const LABEL_WIDTH = 75;

/** What an axis of counts may go up by: nobody sends 2.5 requests. */
const WHOLE_STEPS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();

const drawn = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Values without a neighbour: no line goes through them, so a point shows them. */
function lonely(values) {
  return values.flatMap((value, at) => (value != null && values[at - 1] == null && values[at + 1] == null ? [at] : []));
}

/** Beginnings of hours, days or months, so many as have room; the last one always. */
function ticks(chart, x) {
  const step = Math.ceil(x.length / Math.max(1, Math.floor(chart.width / LABEL_WIDTH)));
  return x.filter((_, place) => (x.length - 1 - place) % step === 0);
}

function options(data, width) {
  const time = new Intl.DateTimeFormat("en-GB", WHEN[data.bucket]);
  const written = (stamp) => time.format(new Date(stamp * 1000));
  const margin = data.kind === "bars" ? SECONDS[data.bucket] / 2 : 0;
  const write = data.unit === "money" ? (value) => `${whole.format(value)} ${data.currency}` : WRITTEN[data.unit];
  const short = SHORT[data.unit] ?? write;
  const axis = { stroke: colour("--pico-muted-color"), grid: { stroke: colour("--pico-muted-border-color"), width: 1 } };
  const paths = data.kind === "bars" ? uPlot.paths.bars({ size: [0.7, 40] }) : undefined;
  return {
    width,
    height: HEIGHT,
    cursor: { y: false, drag: { x: false, y: false } },
    legend: { live: true },
    scales: {
      x: { range: (_, least, most) => [least - margin, most + margin] },
      y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] },
    },
    axes: [
      { ...axis, splits: (chart) => ticks(chart, data.x), values: (_, stamps) => stamps.map(written) },
      {
        ...axis,
        size: 64,
        values: (_, ticks) => ticks.map((tick) => short(tick)),
        ...(data.unit === "money" ? { label: data.currency, labelSize: 18, labelFont: "12px system-ui, sans-serif" } : {}),
        ...(data.unit === "number" ? { incrs: WHOLE_STEPS } : {}),
      },
    ],
    series: [
      { label: data.bucket === "hour" ? "From" : "UTC", value: (_, stamp) => (stamp == null ? "–" : written(stamp)) },
      ...data.series.map((each, number) => ({
        label: each.label,
        stroke: colour(COLOURS[number]),
        fill: data.kind === "bars" ? colour(COLOURS[number]) : undefined,
        width: data.kind === "bars" ? 0 : 2,
        paths,
        points: {
          show: false,
          fill: colour(COLOURS[number]),
          filter: () => (data.kind === "lines" ? lonely(each.values) : null),
        },
        value: (_, value) => (value == null ? "–" : write(value)),
      })),
    ],
  };
}

function draw(element) {
  const data = JSON.parse(element.dataset.chart);
  drawn.get(element)?.destroy();
  element.replaceChildren();
  const values = [data.x, ...data.series.map((each) => each.values)];
  drawn.set(element, new uPlot(options(data, element.clientWidth), values, element));
}

const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) drawn.get(target)?.setSize({ width: target.clientWidth, height: HEIGHT });
});

/** Everything within root that is not drawn yet. */
export function charts(root = document) {
  for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
  for (const element of root.querySelectorAll("[data-chart]")) {
    if (drawn.has(element)) continue;
    draw(element);
    widths.observe(element);
  }
}

function again() {
  for (const element of drawn.keys()) draw(element);
}

new MutationObserver(again).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
document.addEventListener("htmx:afterSettle", () => charts());
charts();
