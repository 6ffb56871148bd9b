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
  assert.equal(await page.locator('img[src=x]').count(), 0);
  assert.equal(await page.evaluate(() => window.__hacked), undefined);
  expectNoFaults();
  for (const target of ['//evil.example/', 'javascript:alert(1)', 'https://evil.example', '/\\evil.example']) {
    const fresh = await openPage(browser);
    await login(fresh.page, site.user, `/login?next=${encodeURIComponent(target)}`);
    assert.equal(new URL(fresh.page.url()).origin, new URL(site.url).origin);
    fresh.expectNoFaults();
    await fresh.context.close();
  }
});
