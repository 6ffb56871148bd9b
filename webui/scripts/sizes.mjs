// Prints the compressed sizes of the bundle and fails when one is over its budget.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const folder = join(root, 'dist', 'assets');
const manifest = JSON.parse(readFileSync(join(root, 'dist', 'manifest.json'), 'utf8'));
const sizes = new Map(
  readdirSync(folder).map((name) => [
    `assets/${name}`,
    gzipSync(readFileSync(join(folder, name)), { level: 9 }).length,
  ]),
);

/** Returns the files that a module needs, itself included. */
function filesOf(key, seen = new Set()) {
  if (seen.has(key)) return [];
  seen.add(key);
  const chunk = manifest[key];
  return [chunk.file, ...(chunk.css ?? []), ...(chunk.imports ?? []).flatMap((name) => filesOf(name, seen))];
}
const sumOf = (files, suffix) =>
  [...new Set(files)].filter((file) => file.endsWith(suffix)).reduce((sum, file) => sum + (sizes.get(file) ?? 0), 0);

const shell = filesOf('index.html');
const first = ['index.html', 'src/i18n/en.ts', 'style.css'].flatMap((key) => filesOf(key));
const pages = Object.keys(manifest).filter((key) => key.endsWith('Page.tsx'));
const own = (key) => filesOf(key).filter((file) => !shell.includes(file));
const terminal = pages.find((key) => key.endsWith('TerminalPage.tsx')); // has an emulator of its own
const largest = Math.max(...pages.filter((key) => key !== terminal).map((key) => sumOf(own(key), '.js')));

const requests = new Set(first).size + 2; // the page and the colour scheme

const kilobytes = (bytes) => (bytes / 1000).toFixed(1);
const budgets = [
  ['first page, JavaScript', sumOf(first, '.js'), 260_000],
  ['first page, styles', sumOf(first, '.css'), 32_000],
  ['largest lazy page', largest, 40_000],
  ['terminal', sumOf(own(terminal), '.js'), 135_000],
  ['whole bundle', [...sizes.values()].reduce((sum, size) => sum + size, 0), 800_000],
];
if (requests > 8) throw new Error(`The first page makes ${requests} requests, not 8 or fewer.`);
const lines = [...sizes]
  .sort((a, b) => b[1] - a[1])
  .map(([name, size]) => `${kilobytes(size).padStart(8)} kB  ${name}`);
lines.push(...budgets.map(([name, size, limit]) => `${name}: ${kilobytes(size)} of ${kilobytes(limit)} kB gzip`));
process.stdout.write(`${lines.join('\n')}\n`);
const exceeded = budgets.filter(([, size, limit]) => size > limit);
if (exceeded.length > 0) {
  process.stderr.write(`Over budget: ${exceeded.map(([name]) => name).join('; ')}.\n`);
  process.exit(1);
}
