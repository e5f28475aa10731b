/** Times in the reader's zone. */

const ZONED = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const SHORT = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** Whether it is plain which year is meant. */
const recent = (moment) => moment.getFullYear() === new Date().getFullYear();

export function localise(root) {
  for (const time of root.querySelectorAll("time[data-local]")) {
    const moment = new Date(time.dateTime);
    time.textContent = (time.dataset.local === "short" && recent(moment) ? SHORT : ZONED).format(moment);
    time.title = `${FULL.format(moment)}\n${moment.toISOString()}`;
    delete time.dataset.local;
  }
}
