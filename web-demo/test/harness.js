// What the tests share: a real server, and waiting without sleeping blindly.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

/** The server's binary: $TREADLE_BIN, built from this repository where that is missing. */
export function treadleBinary() {
  const path = process.env.TREADLE_BIN || join(mkdtempSync(join(tmpdir(), "treadle-bin-")), "treadle");
  if (!existsSync(path)) {
    execFileSync("go", ["build", "-o", path, "./cmd/treadle"], { cwd: fileURLToPath(new URL("../../", import.meta.url)), stdio: "inherit" });
  }
  return path;
}

/** A server with a data directory of its own. It can be killed, wiped and started again at the same address. */
export class Server {
  #binary;
  #args;
  #dir = mkdtempSync(join(tmpdir(), "treadle-data-"));
  #process;
  #listen = "127.0.0.1:0";
  url = "";

  /** @param {string} binary @param {...string} args further flags of `serve` */
  constructor(binary, ...args) {
    this.#binary = binary;
    this.#args = args;
  }
  async start() {
    this.#process = spawn(this.#binary, ["serve", "--data-dir", this.#dir, "--listen", this.#listen, "--log-level", "error", ...this.#args], { stdio: ["ignore", "pipe", "pipe"] });
    let log = "";
    this.#process.stderr.on("data", (chunk) => (log += chunk));
    for await (const line of createInterface({ input: this.#process.stdout })) {
      const found = /^listening on (http:\/\/(\S+))$/.exec(line);
      if (!found) continue;
      [, this.url, this.#listen] = found;
      this.#process.stdout.resume();
      return this;
    }
    throw new Error(`the server did not start: ${log}`);
  }
  async kill(signal = "SIGKILL") {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const gone = new Promise((resolve) => this.#process.once("exit", resolve));
    this.#process.kill(signal);
    await gone;
  }
  wipe() {
    rmSync(this.#dir, { recursive: true, force: true });
  }
  async stop() {
    await this.kill();
    this.wipe();
  }
}

/** A promise and its ends. */
export function deferred() {
  const d = {};
  d.promise = new Promise((resolve, reject) => Object.assign(d, { resolve, reject }));
  return d;
}

/** Waits until look() is true or gives something, at most for ms. */
export async function until(look, what = String(look), ms = 10_000) {
  const end = Date.now() + ms;
  for (;;) {
    const found = await look();
    if (found) return found;
    assert.ok(Date.now() < end, `waited ${ms} ms for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
