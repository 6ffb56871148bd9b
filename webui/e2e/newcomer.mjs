// A person who has never seen the console: logs in, starts a session, types in its terminal, runs a cell with a figure,
// sends a file, opens an app, and ends the session.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { checkAccessibility, journey, openPage, screenshot, site } from './browser.mjs';

const figure = `class Figure:
    def _repr_svg_(self):
        return '<svg xmlns="http://www.w3.org/2000/svg" width="80" height="40"><rect width="80" height="40" fill="teal"/></svg>'
print("drawn")
Figure()`;

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

  await page.getByRole('link', { name: 'New session' }).first().click();
  const image = page.getByRole('combobox', { name: 'Image' }).or(page.getByRole('textbox', { name: 'Image' }));
  await image.first().click();
  await page
    .getByRole('option', { name: /python/ })
    .first()
    .click();
  await page.getByLabel('Name', { exact: true }).fill('newcomer');
  await page.getByText('Starts now').first().waitFor();
  await screenshot(page, 'newcomer-launch');
  await page.getByRole('button', { name: 'Launch' }).click();
  await page.waitForURL(/\/sessions\/[0-9a-f-]{36}/);
  const address = page.url().replace(/([0-9a-f-]{36}).*/, '$1');
  await page.getByRole('heading', { level: 1, name: 'newcomer' }).waitFor();
  await page.getByText('RUNNING', { exact: true }).first().waitFor(); // told by events
  await page.getByText('backend.ai start -t newcomer').waitFor();
  await screenshot(page, 'newcomer-session');

  await page.getByRole('link', { name: 'Terminal' }).click();
  await page.getByText('Connected').waitFor();
  await page.keyboard.type('echo "ready-$((40+2))"\r');
  await page.locator('.xterm-rows').getByText('ready-42', { exact: true }).waitFor();
  await screenshot(page, 'newcomer-terminal');
  await page.keyboard.press('Control+F6');
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), 'Back to the session');
  await page.keyboard.press('Enter');

  await page.getByRole('tab', { name: 'Cells' }).click();
  const cell = page.getByRole('textbox', { name: 'Code of cell 1' });
  await cell.fill(figure);
  await cell.press('Shift+Enter');
  const drawn = page.getByRole('img', { name: 'Figure 2' });
  await drawn.waitFor();
  assert.equal(await drawn.evaluate((element) => element.naturalWidth), 80);
  const second = page.getByRole('textbox', { name: 'Code of cell 2' });
  await second.fill('name = input("who? ")\nprint("hello", name)\n1 / 0');
  await second.press('Shift+Enter');
  await page.getByLabel('The program waits for a line').fill('ann');
  await page.keyboard.press('Enter');
  await page.getByText('ZeroDivisionError').waitFor();
  await page.getByText('hello ann').waitFor();
  await screenshot(page, 'newcomer-cells');

  await page.getByRole('tab', { name: 'Files' }).click();
  await page
    .locator('input[type=file]')
    .setInputFiles({ name: 'héllo 1.txt', mimeType: 'text/plain', buffer: Buffer.from('wörld') });
  await page.getByText('1 file uploaded').waitFor();
  const download = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Download héllo 1.txt' }).click();
  assert.equal(readFileSync(await (await download).path(), 'utf8'), 'wörld');
  await screenshot(page, 'newcomer-files');

  await page.getByRole('tab', { name: 'Apps' }).click();
  const opened = page.waitForEvent('popup');
  await page.getByRole('button', { name: 'Open http' }).click();
  const app = await opened;
  await app.getByText('héllo 1.txt').waitFor(); // it lists the files of the session
  assert.notEqual(new URL(app.url()).origin, new URL(site.url).origin);
  await app.close();

  await page.goto(address);
  await page.getByRole('button', { name: 'More that can be done' }).click();
  await page.getByRole('menuitem', { name: 'Rename' }).click();
  await page.getByRole('dialog').getByLabel('Name', { exact: true }).fill('experienced');
  assert.deepEqual(await checkAccessibility(page, 'the dialog of a name'), []);
  await page.getByRole('dialog').getByRole('button', { name: 'Rename' }).click();
  await page.getByRole('heading', { level: 1, name: 'experienced' }).waitFor();
  await page.getByRole('button', { name: 'Terminate' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Terminate' }).click();
  await page.getByText('TERMINATED').first().waitFor(); // told by an event: nobody reloads
  await screenshot(page, 'newcomer-terminated');
  expectNoFaults();
});
