// A login that ends in the middle of a form: the draft stays, and the work goes on after another login.
import assert from 'node:assert/strict';
import { journey, login, openPage, screenshot, site } from './browser.mjs';

await journey(async (browser) => {
  const { page, context, expectNoFaults } = await openPage(browser, { expects: [/^401 /] });
  await login(page, site.user, '/folders');
  await page.getByRole('button', { name: 'New folder' }).click();
  await page.getByLabel('Name', { exact: true }).fill('draft');
  await context.clearCookies();
  await page.getByRole('button', { name: 'Create' }).click();
  const password = page.getByLabel('Password', { exact: true });
  await password.waitFor();
  await screenshot(page, 'expired');
  await page.getByLabel('E-mail address').fill(site.user.email); // is there already, unless the page was left no time
  await password.fill(site.user.password);
  await page.getByRole('button', { name: 'Log in' }).click();
  await password.waitFor({ state: 'hidden' });
  assert.equal(await page.getByLabel('Name', { exact: true }).inputValue(), 'draft');
  await page.getByRole('button', { name: 'Create' }).click();
  await page.getByRole('heading', { level: 1, name: 'draft' }).waitFor();
  expectNoFaults();
});
