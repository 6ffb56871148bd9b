// Runs the snippets of query mode in one Node.js. Descriptor 62 brings requests, 63 takes reports, framed as in
// framing.py: kind (1 byte), length (4 bytes, big endian), fields of a length and bytes each.
"use strict";
const fs = require("fs");
const util = require("util");
const vm = require("vm");

const SNIPPET = { filename: "<input>", breakOnSigint: true, importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER };
let interrupt = () => {};

function sized(bytes) {
  const head = Buffer.alloc(4);
  head.writeUInt32BE(bytes.length);
  return Buffer.concat([head, bytes]);
}

function report(kind, ...texts) {
  const payload = Buffer.concat(texts.map((text) => sized(Buffer.from(text))));
  fs.writeSync(63, Buffer.concat([Buffer.from(kind), sized(payload)]));
}

function takeRequest(buffer) {
  if (buffer.length < 5 || buffer.length < 5 + buffer.readUInt32BE(1)) return null;
  const end = 5 + buffer.readUInt32BE(1);
  const fields = [];
  for (let at = 5; at < end; at += 4 + buffer.readUInt32BE(at)) {
    fields.push(buffer.toString("utf8", at + 4, at + 4 + buffer.readUInt32BE(at)));
  }
  return { fields, rest: buffer.subarray(end) };
}

function evaluate(code) {
  try {
    return vm.runInThisContext(code, SNIPPET);
  } catch (error) {
    if (!(error instanceof SyntaxError) || !/\bawait\b/.test(code)) throw error;
    return vm.runInThisContext(`(async () => {\n${code}\n})()`, { ...SNIPPET, lineOffset: -1 });
  }
}

async function run(number, code) {
  try {
    const interrupted = new Promise((_, reject) => (interrupt = () => reject(new Error("interrupted"))));
    const value = await Promise.race([evaluate(code), interrupted]);
    if (value !== undefined) console.log(util.inspect(value));
  } catch (error) {
    const text = error instanceof Error ? String(error.stack) : `Uncaught ${util.inspect(error)}`;
    const shown = text.split("\n").filter((line) => !line.includes(__filename) && !line.includes("node:")).join("\n");
    fs.writeSync(2, shown + "\n");
    report("X", shown, error instanceof Error ? error.name : typeof error, error instanceof Error ? error.message : String(error));
  } finally {
    interrupt = () => {};
    report("D", number);
  }
}

process.on("SIGINT", () => interrupt());
process.on("uncaughtException", (error) => console.error(error));
globalThis.require = require("module").createRequire(process.cwd() + "/");
report("H", process.versions.node);
report("S");
let pending = Buffer.alloc(0);
fs.createReadStream(null, { fd: 62 })
  .on("data", (bytes) => {
    pending = Buffer.concat([pending, bytes]);
    for (let request = takeRequest(pending); request !== null; request = takeRequest(pending)) {
      pending = request.rest;
      run(...request.fields);
    }
  })
  .on("end", () => process.exit(0));
