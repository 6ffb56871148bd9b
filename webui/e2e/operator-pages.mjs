// Every page of operators, in both themes and languages and at two widths, with what it shows when there is something.
import assert from 'node:assert/strict';
import { checkAccessibility, journey, login, openPage, screenshot, site } from './browser.mjs';

const pages = [
  '/presets',
  '/scheduler',
  '/registries',
  '/storage',
  `/storage?owner=${site.user.email}`,
  '/proxies',
  '/system',
  '/system/settings?of=all',
  '/system/audit',
  '/system/errors',
  '/system/roles',
  '/people/new',
];
const nameOf = (path) => path.replaceAll(/[^a-z]+/g, '-').replaceAll(/^-|-$/g, '');

await journey(async (browser) => {
  const violations = [];
  for (const scheme of ['light', 'dark']) {
    for (const width of [1280, 360]) {
      const language = scheme === 'dark' ? 'ko-KR' : 'en-US';
      const { page, context, expectNoFaults } = await openPage(browser, { scheme, width, language });
      await login(page, site.admin);
      for (const path of pages) {
        await page.goto(path);
        await page.getByRole('heading', { level: 1 }).first().waitFor();
        await page
          .locator('[role=status][aria-label]')
          .first()
          .waitFor({ state: 'detached' })
          .catch(() => {});
        await page.waitForTimeout(150); // transitions
        violations.push(...(await checkAccessibility(page, `${nameOf(path)} ${scheme} ${width}`)));
        await screenshot(page, `${nameOf(path)}-${scheme}-${width}`);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        assert.ok(overflow <= 0, `${path} is ${overflow} pixels too wide at ${width}`);
      }
      expectNoFaults();
      await context.close();
    }
  }
  assert.deepEqual(violations, []);
});
