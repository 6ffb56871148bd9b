// Names, logs and paths that are full of script are text.
import assert from 'node:assert/strict';
import { journey, login, openPage, screenshot, site } from './browser.mjs';

const html =
  '<p onclick="parent.__hacked=1">harmless</p><script>parent.__hacked=1</script><img src=x onerror="parent.__hacked=1">' +
  '<svg onload="parent.__hacked=1"></svg><form action="/func/session"><input name=a></form>' +
  '<a href="javascript:parent.__hacked=1">a</a><style>body{display:none}</style><img src="http://evil.example/x.png">';

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

  // HTML that a program shows is in a frame that runs nothing and reaches nothing.
  await page.goto(`/sessions/${site.hostile}/cells`);
  const cell = page.getByRole('textbox', { name: 'Code of cell 1' });
  await cell.fill(`class Page:\n    def _repr_html_(self): return ${JSON.stringify(html)}\nPage()`);
  await cell.press('Shift+Enter');
  const frame = page.frameLocator('iframe');
  await frame.getByText('harmless').waitFor();
  assert.equal(await frame.locator('script, svg, form, a[href], [onclick], img').count(), 0);
  await page.getByText('Scripts of this output do not run here.').waitFor();
  await screenshot(page, 'hostile-cell');
  // Even what would get past the filter runs nowhere: the frame has an origin of its own and no scripts.
  assert.equal(await page.locator('iframe').getAttribute('sandbox'), '');
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
