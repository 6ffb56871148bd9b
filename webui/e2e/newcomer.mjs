// A person who has never seen the console: logs in, finds the session, types in its terminal, and ends it.
import assert from 'node:assert/strict';
import { journey, openPage, screenshot, site } from './browser.mjs';

await journey(async (browser) => {
  const { page, expectNoFaults } = await openPage(browser, { expects: [/^4\d\d POST .*\/server\/login$/] });
  await page.goto('/sessions');
  await page.waitForURL(/\/login\?next=/);
  await screenshot(page, 'newcomer-login');
  await page.getByLabel('E-mail address').fill(site.user.email);
  await page.getByLabel('Password', { exact: true }).fill('a wrong password');
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByRole('alert').waitFor();
  await page.getByLabel('Password', { exact: true }).fill(site.user.password);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.waitForURL(/\/sessions/);

  await page.getByRole('link', { name: site.session }).click();
  await page.getByRole('heading', { level: 1, name: site.session }).waitFor();
  await screenshot(page, 'newcomer-session');
  await page.getByRole('link', { name: 'Terminal' }).click();
  await page.getByText('Connected').waitFor();
  await page.keyboard.type('echo "ready-$((40+2))"\r');
  await page.locator('.xterm-rows').getByText('ready-42', { exact: true }).waitFor();
  await screenshot(page, 'newcomer-terminal');

  await page.keyboard.press('Control+F6');
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), 'Back to the session');
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Terminate' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Terminate' }).click();
  await page.getByText('TERMINATED').first().waitFor(); // told by an event: nobody reloads
  await screenshot(page, 'newcomer-terminated');
  expectNoFaults();
});
