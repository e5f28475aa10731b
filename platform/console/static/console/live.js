/** Keeps what the overview shows of this moment up to date, as long as the page is looked at. */

import { renewContent } from "./in_place.js";

const mark = document.getElementById("live");
const now = document.getElementById("now");
const LONGEST_PAUSE = 30_000;
const MOST_FAILURES = 8;
const ENDED = { 4401: "You may no longer look: reload the page." };
const TOO_MANY = 4429; // the server says of what, and what to do

let socket;
let failures = 0;
let timer;

function say(text, on = false) {
  mark.textContent = text;
  mark.classList.toggle("on", on);
}

function open() {
  clearTimeout(timer);
  const url = new URL(mark.dataset.live, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  socket = new WebSocket(url);
  socket.addEventListener("open", pause); // somebody looked away meanwhile
  socket.addEventListener("message", ({ data }) => {
    failures = 0;
    // Written by the server's own template, which escapes every name.
    renewContent(now, JSON.parse(data).html);
    say("live", true);
  });
  socket.addEventListener("close", ({ code, reason }) => {
    socket = undefined;
    if (document.hidden) return say("paused");
    if (ENDED[code]) return say(ENDED[code]);
    if (code === TOO_MANY) return say(reason || "not live: reload the page");
    if (++failures > MOST_FAILURES) return say("not live: reload the page");
    say("not live; trying again");
    timer = setTimeout(open, Math.min(1000 * 2 ** failures, LONGEST_PAUSE) * (0.5 + Math.random() / 2));
  });
}

/** One that is not open yet is left alone until it is: closing it would be an error in the browser's console. */
function close() {
  if (socket?.readyState === WebSocket.OPEN) socket.close();
}

function pause() {
  if (document.hidden) close();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) close();
  else if (!socket) open();
});
addEventListener("pagehide", close);
open();
