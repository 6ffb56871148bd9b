// What all journeys share: a browser, the rules that hold on every page, and screenshots.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, join } from 'node:path';
import { chromium } from 'playwright-core';

/** The cluster and its users, as the test that starts a journey knows them. */
export const site = JSON.parse(process.env.BACKENDAI_SITE ?? '{}');
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const rules = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
/** How long one step may take, in ms: so long that it ends a journey that hangs, and none on a busy computer. */
const actTimeout = Number(site.actTimeout ?? 180_000);
const ownOrigins = new Set([site.url, ...(site.storage ? [site.storage] : [])].map((url) => new URL(url).origin));

export function launch(graphics = ['--use-angle=swiftshader', '--enable-unsafe-swiftshader']) {
  return chromium.launch({
    executablePath: site.chromium,
    args: [...(process.getuid() === 0 ? ['--no-sandbox'] : []), ...graphics],
  });
}

/**
 * Opens a page on which nothing may go wrong: no error on the console, no violation of the policy, no request to
 * another host, no reply of 400 or more. `expects` are patterns of what a journey brings about on purpose.
 */
export async function openPage(browser, { scheme = 'light', width = 1280, language = 'en-US', expects = [] } = {}) {
  const context = await browser.newContext({
    baseURL: site.url,
    colorScheme: scheme,
    viewport: { width, height: width < 600 ? 740 : 800 },
    locale: language,
    acceptDownloads: true,
  });
  context.setDefaultTimeout(actTimeout);
  const page = await context.newPage();
  const faults = [];
  const report = (text) => {
    if (!expects.some((pattern) => pattern.test(text))) faults.push(text);
  };
  page.on('console', (message) => {
    // A refused request is reported with its status below.
    if (['error', 'warning'].includes(message.type()) && !message.text().startsWith('Failed to load resource')) {
      report(`console: ${message.text()}`);
    }
  });
  page.on('pageerror', (error) => report(`exception: ${error.message}`));
  page.on('response', (response) => {
    if (response.status() >= 400) report(`${response.status()} ${response.request().method()} ${response.url()}`);
  });
  page.on('request', (request) => {
    const { origin, protocol } = new URL(request.url());
    if (protocol.startsWith('http') && !ownOrigins.has(origin)) report(`foreign host: ${request.url()}`);
  });
  page.on('dialog', (dialog) => {
    report(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return { context, page, faults, expectNoFaults: () => assert.deepEqual(faults, []) };
}

/** Logs in by the form, as a person does, in any language. */
export async function login(page, { email, password }, path = '/') {
  await page.goto(path);
  await page.locator('input[name=username]').fill(email);
  await page.locator('input[name=password]').fill(password);
  await page.locator('button[type=submit]').click();
  // The form stays on screen until the page behind it is loaded, and has fields that others have too.
  await page.locator('input[name=password]').waitFor({ state: 'detached' });
}

/** Waits until the page has its title, nothing on it is being loaded, and what moves has come to its end. */
export async function settle(page) {
  await page.locator('h1').first().waitFor(); // by its element: behind a dialog it has no role
  await page.locator('[role=status][aria-label]').first().waitFor({ state: 'detached' });
  await page.evaluate(() => {
    const ends = document.getAnimations().filter(({ effect }) => effect?.getComputedTiming().endTime !== Infinity);
    return Promise.all(ends.map(({ finished }) => finished.catch(() => {})));
  });
}

/** Returns every rule of accessibility that the settled page breaks, and where. A terminal's colours are the shell's. */
export async function checkAccessibility(page, name) {
  if ((await page.getByRole('dialog').count()) > 0) {
    await page.locator('[role=menu]').first().waitFor({ state: 'detached' }); // the one that led to the dialog
  }
  await settle(page); // what fades in or out has other colours meanwhile
  await page.evaluate(axe); // not as an element: the policy of the page forbids scripts of others
  const { violations } = await page.evaluate(
    (tags) => window.axe.run({ exclude: [['.xterm']] }, { runOnly: { type: 'tag', values: tags } }),
    rules,
  );
  return violations.map(
    ({ id, nodes }) => `${name}: ${id}: ${nodes.map((node) => node.html.slice(0, 160)).join(' | ')}`,
  );
}

/** Fails where the page is wider than the window, or a button or a placeholder shows a part of its words, at this width too. */
export async function expectNothingCut(page, name, ...otherWidths) {
  const size = page.viewportSize();
  for (const width of [size.width, ...otherWidths]) {
    await page.setViewportSize({ ...size, width });
    await settle(page); // the navigation comes and goes with a transition
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    const faults = await page.evaluate(() => {
      const pen = document.createElement('canvas').getContext('2d');
      const isPlaceholderCut = (field) => {
        const style = getComputedStyle(field);
        pen.font = style.font;
        const room = field.clientWidth - Number.parseFloat(style.paddingLeft) - Number.parseFloat(style.paddingRight);
        return field.clientWidth > 0 && field.value === '' && pen.measureText(field.placeholder).width > room + 1;
      };
      return [
        ...[...document.querySelectorAll('.mantine-Button-label')]
          .filter((label) => label.clientWidth > 0 && label.scrollWidth > label.clientWidth + 1)
          .map((label) => `cut: ${label.textContent}`),
        ...[...document.querySelectorAll('input[placeholder]')]
          .filter(isPlaceholderCut)
          .map((field) => `cut: ${field.placeholder}`),
        ...(document.documentElement.scrollWidth > window.innerWidth ? ['wider than the window'] : []),
      ];
    });
    assert.deepEqual(faults, [], `${name} at ${width}`);
  }
  await page.setViewportSize(size);
}

export async function screenshot(page, name) {
  if (!site.screenshots) return;
  mkdirSync(site.screenshots, { recursive: true });
  await page.screenshot({ path: join(site.screenshots, `${name}.png`), fullPage: false });
}

/** Returns where a page is, how it is scrolled, and what on it is right of the window: logs outlive screenshots. */
async function describe(page) {
  const state = await page.evaluate(() => {
    const { scrollWidth, scrollHeight } = document.documentElement;
    const beyond = [...document.querySelectorAll('main *')].filter(
      (element) => element.getBoundingClientRect().right > window.innerWidth + 1,
    );
    return {
      window: [window.innerWidth, window.innerHeight],
      document: [scrollWidth, scrollHeight],
      scrolled: [window.scrollX, window.scrollY],
      dialogs: [...document.querySelectorAll('[role=dialog]')].map((dialog) => dialog.textContent?.slice(0, 80)),
      beyond: beyond.slice(0, 3).map((element) => element.outerHTML.slice(0, 160)),
    };
  });
  return `${page.url()} ${JSON.stringify(state)}`;
}

/** Asks the test that runs this journey for something that a browser cannot do, and waits until it is done. */
export async function askTest(act) {
  process.stdout.write(`@${act}\n`);
  process.stdin.ref();
  process.stdin.resume();
  await new Promise((resolve) => {
    process.stdin.once('data', resolve);
  });
  process.stdin.pause();
  process.stdin.unref(); // an open pipe would keep the process alive
}

/** Runs a journey and ends the process with 1 where it fails. */
export async function journey(run) {
  const browser = await launch();
  try {
    await run(browser);
  } catch (error) {
    let failures = 0;
    for (const context of browser.contexts()) {
      for (const page of context.pages()) {
        failures += 1;
        await screenshot(page, `failure-${basename(process.argv[1], '.mjs')}-${failures}`).catch(() => {});
        process.stderr.write(`${await describe(page).catch(String)}\n`);
      }
    }
    process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}
