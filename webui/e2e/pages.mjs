// Every page, in both themes and at two widths: no rule of accessibility is broken, nothing goes wrong.
import assert from 'node:assert/strict';
import {
  checkAccessibility,
  expectNothingCut,
  journey,
  login,
  openPage,
  screenshot,
  settle,
  site,
} from './browser.mjs';

const everybody = [
  '/',
  '/sessions',
  '/folders',
  '/folders?view=trash',
  '/folders/shares',
  `/folders/${site.folder}`,
  ...(site.file ? [`/folders/${site.folder}/files/?show=${encodeURIComponent(site.file)}`] : []),
  '/sessions/new',
  '/sessions/arrays?all=true',
  '/queue',
  '/claims',
  '/images',
  '/usage',
  '/usage?of=all',
  '/services',
  '/services/new',
  '/projects',
  '/token-login',
  '/sign-up',
  '/verify-email',
  '/account',
  '/no-such-page',
];
const ofSession = ['', '/logs', '/cells', '/files', '/apps', '/metrics', '/devices', '/events', '/terminal'].map(
  (tab) => `/sessions/${site.hostile}${tab}`,
);
const administrators = [
  '/folders?view=all',
  '/people',
  '/people/new',
  '/people?tab=keypairs',
  '/domains/default',
  '/policies',
  '/system',
];

const nameOf = (path) =>
  path
    .replaceAll(/[0-9a-f-]{36}/g, 'one')
    .replaceAll(/[^a-z]+/g, '-')
    .replaceAll(/^-|-$/g, '') || 'home';

await journey(async (browser) => {
  const violations = [];
  for (const scheme of ['light', 'dark']) {
    for (const width of [1280, 360]) {
      const language = scheme === 'dark' ? 'ko-KR' : 'en-US';
      const { page, context, expectNoFaults } = await openPage(browser, { scheme, width, language });
      await page.goto('/login');
      await page.locator('button[type=submit]').waitFor();
      violations.push(...(await checkAccessibility(page, `login ${scheme} ${width}`)));
      await screenshot(page, `login-${scheme}-${width}`);
      await login(page, site.admin);
      for (const path of [...everybody, ...ofSession, ...administrators]) {
        await page.goto(path);
        await settle(page);
        // Of four combinations two have each theme and each width: the rules take most of the time.
        if ((scheme === 'light') === (width === 1280))
          violations.push(...(await checkAccessibility(page, `${nameOf(path)} ${scheme} ${width}`)));
        await screenshot(page, `${nameOf(path)}-${scheme}-${width}`);
        await expectNothingCut(page, path, ...(width === 1280 ? [1024] : []));
      }
      expectNoFaults();
      await context.close();
    }
  }
  assert.deepEqual(violations, []);
});
