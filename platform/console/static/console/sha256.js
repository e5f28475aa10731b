/** SHA-256 of what comes in pieces, which the browser's own cannot do; also where the page came over plain HTTP. */

const K = new Int32Array(64); // signed, as the engine's own 32-bit numbers: five times as fast
const START = new Int32Array(8);
{
  /* The first 32 bits of the fractions of the primes' cube roots, and of square roots for the first eight. */
  let found = 0;
  for (let number = 2; found < 64; number += 1) {
    let prime = true;
    for (let factor = 2; factor * factor <= number; factor += 1) if (number % factor === 0) { prime = false; break; }
    if (!prime) continue;
    if (found < 8) START[found] = (number ** (1 / 2) % 1) * 0x100000000 | 0;
    K[found] = (number ** (1 / 3) % 1) * 0x100000000 | 0;
    found += 1;
  }
}

export class Sha256 {
  #state = START.slice();
  #words = new Int32Array(64);
  #rest = new Uint8Array(64);
  #kept = 0;
  #length = 0;

  /** @param {Uint8Array} bytes */
  update(bytes) {
    this.#length += bytes.length;
    let at = 0;
    if (this.#kept) {
      at = Math.min(64 - this.#kept, bytes.length);
      this.#rest.set(bytes.subarray(0, at), this.#kept);
      this.#kept += at;
      if (this.#kept < 64) return;
      this.#block(this.#rest, 0);
      this.#kept = 0;
    }
    for (; at + 64 <= bytes.length; at += 64) this.#block(bytes, at);
    this.#rest.set(bytes.subarray(at));
    this.#kept = bytes.length - at;
  }

  /** @returns {string} 64 lower-case hex digits */
  hex() {
    const bits = this.#length * 8;
    const end = new Uint8Array(((this.#kept < 56 ? 64 : 128) - this.#kept));
    end[0] = 0x80;
    const view = new DataView(end.buffer);
    view.setUint32(end.length - 8, Math.floor(bits / 0x100000000));
    view.setUint32(end.length - 4, bits >>> 0);
    this.update(end);
    return [...this.#state].map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  #block(bytes, at) {
    const w = this.#words;
    for (let i = 0; i < 16; i += 1) {
      const j = at + i * 4;
      w[i] = (bytes[j] << 24) | (bytes[j + 1] << 16) | (bytes[j + 2] << 8) | bytes[j + 3];
    }
    for (let i = 16; i < 64; i += 1) {
      const x = w[i - 15], y = w[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    const state = this.#state;
    let a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (let i = 0; i < 64; i += 1) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const one = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const two = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0;
      d = c; c = b; b = a; a = (one + two) | 0;
    }
    state[0] += a; state[1] += b; state[2] += c; state[3] += d;
    state[4] += e; state[5] += f; state[6] += g; state[7] += h;
  }
}
