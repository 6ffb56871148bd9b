// Names, logs and paths that are full of script are text.
import assert from 'node:assert/strict';
import { journey, login, openPage, screenshot, site } from './browser.mjs';

await journey(async (browser) => {
  const { page, expectNoFaults } = await openPage(browser);
  await login(page, site.user, `/sessions/${site.hostile}/logs`);
  await page.getByText('<img src=x onerror=').first().waitFor();
  await screenshot(page, 'hostile-log');
  await page.goto(`/folders/${site.folder}`);
  await page.getByText('<img src=x onerror=').first().waitFor();
  await page
    .getByRole('link', { name: /script/ })
    .first()
    .click();
  await page.getByRole('navigation', { name: 'Path' }).getByText('<script>').waitFor();
  await screenshot(page, 'hostile-folder');
  for (const path of [
    '/login?next=//evil.example/',
    '/login?next=javascript:alert(1)',
    '/login?next=https://evil.example',
  ]) {
    await page.context().clearCookies();
    await login(page, site.user, path);
    assert.equal(new URL(page.url()).origin, new URL(site.url).origin);
  }
  assert.equal(await page.locator('img[src=x]').count(), 0);
  assert.equal(await page.evaluate(() => window.__hacked), undefined);
  expectNoFaults();
});
