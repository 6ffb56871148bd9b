// Measures the console in Chromium for `bench/run console-*` and prints one JSON object. BACKENDAI_SITE.measure is what.
import { launch, login, openPage, site } from './browser.mjs';

const rounds = Number(site.rounds ?? 5);
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN;

/** Notes in the page the moment at which an element is first there, in milliseconds since the page was asked for. */
const noteFirst = (selector) => {
  window.__first = new Promise((resolve) => {
    const look = () => {
      const element = document.querySelector(selector);
      if (element === null) return requestAnimationFrame(look);
      return requestAnimationFrame(() => resolve(performance.now())); // it has been painted by the next frame
    };
    look();
  });
};
const cards = 'main section[aria-label] p, main section[aria-label] li';
const rows = '[role=row][data-row] a';

/** From an empty cache to the login form, and from the form to what the first page says; the processor is slowed. */
async function paint(browser) {
  const forms = [];
  const firsts = [];
  for (let round = 0; round < rounds; round += 1) {
    const { page, context } = await openPage(browser);
    const session = await context.newCDPSession(page);
    await session.send('Emulation.setCPUThrottlingRate', { rate: Number(site.slowed ?? 4) });
    await page.addInitScript(noteFirst, 'input[name=password]');
    await page.goto('/login');
    forms.push(await page.evaluate(() => window.__first));
    await page.locator('input[name=username]').fill(site.user.email);
    await page.locator('input[name=password]').fill(site.user.password);
    await page.evaluate(noteFirst, cards);
    await page.evaluate(() => {
      document.querySelector('form').addEventListener('submit', () => {
        window.__submitted = performance.now();
      });
    });
    await page.locator('button[type=submit]').click();
    firsts.push(await page.evaluate(async () => (await window.__first) - window.__submitted));
    await context.close();
  }
  return { form: median(forms), first: median(firsts) };
}

/**
 * From a key to the frame that shows its echo, within the page: rows change as a frame begins, and a message comes after it.
 * Keys come at random moments between two frames, as those of people do. Waiting by frames would press each key just after
 * a frame, which is the worst moment: Chromium holds messages back from a key until the next frame is drawn.
 */
async function keystroke(browser) {
  const { page } = await openPage(browser);
  await login(page, site.user, `/sessions/${site.session}/terminal`);
  await page.getByText('Connected').waitFor();
  await page.locator('.xterm-rows').getByText('$').first().waitFor();
  await page.evaluate(() => {
    const rows = document.querySelector('.xterm-rows');
    const text = () => rows.textContent.replaceAll(/\s/g, '').length;
    window.__echoes = [];
    let pressed = 0;
    let before = 0;
    document.addEventListener(
      'keydown',
      (event) => {
        pressed = event.timeStamp;
        before = text();
      },
      true,
    );
    new MutationObserver(() => {
      if (pressed === 0 || text() <= before) return;
      const at = pressed;
      pressed = 0;
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => window.__echoes.push(performance.now() - at);
      port2.postMessage(0);
    }).observe(rows, { childList: true, characterData: true, subtree: true });
  });
  for (let count = 1; count <= 60; count += 1) {
    await page.keyboard.press('x');
    await page.waitForFunction((least) => window.__echoes.length >= least, count, { polling: 40 });
    await page.waitForTimeout(40 + Math.random() * 50); // three frames: every moment is as likely
  }
  const echoes = (await page.evaluate(() => window.__echoes)).slice(10);
  const sorted = [...echoes].sort((a, b) => a - b);
  return { p50: median(echoes), p90: sorted[Math.floor(sorted.length * 0.9)] };
}

/** The first rows of a list of many sessions, opened anew and from another page, and frames while it is scrolled. */
async function list(browser) {
  const opened = [];
  const changed = [];
  const rates = [];
  let nodes = 0;
  const { page } = await openPage(browser);
  await login(page, site.user);
  for (let round = 0; round < rounds; round += 1) {
    await page.addInitScript(noteFirst, rows);
    await page.goto('/sessions?status=all');
    opened.push(await page.evaluate(() => window.__first));
    await page.goto('/sessions?status=waiting');
    await page.getByText('0 sessions').waitFor();
    await page.evaluate(noteFirst, rows);
    const began = await page.evaluate(() => {
      const began = performance.now();
      document.querySelector('input[type=radio][value=all]').click();
      return began;
    });
    changed.push((await page.evaluate(() => window.__first)) - began);
    rates.push(
      await page.evaluate(async () => {
        const began = performance.now();
        let frames = 0;
        await new Promise((resolve) => {
          const step = () => {
            frames += 1;
            window.scrollBy(0, 60);
            if (performance.now() - began < 4000) requestAnimationFrame(step);
            else resolve();
          };
          requestAnimationFrame(step);
        });
        return (1000 * frames) / (performance.now() - began);
      }),
    );
    nodes = Math.max(nodes, await page.evaluate(() => document.querySelectorAll('*').length));
  }
  return { opened: median(opened), changed: median(changed), rate: median(rates), nodes };
}

// Without a graphics card, Chromium's own software compositor draws more frames than an emulated card does.
const browser = await launch(['--disable-gpu']);
try {
  process.stdout.write(JSON.stringify(await { paint, keystroke, list }[site.measure](browser)));
} finally {
  await browser.close();
}
