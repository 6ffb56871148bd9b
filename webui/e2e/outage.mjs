// The network breaks, and then the whole cluster is killed and started again: nothing that a person has done is lost.
import assert from 'node:assert/strict';
import { askTest, journey, login, openPage, screenshot, site } from './browser.mjs';

const outage = [/ERR_/, /^50[0-9] /, /WebSocket/, /EventSource/, /net::/];

await journey(async (browser) => {
  const { page, context, expectNoFaults } = await openPage(browser, { expects: outage });
  await login(page, site.user, `/sessions/${site.session}/terminal`);
  await page.getByText('Connected').waitFor();
  const list = await context.newPage();
  await list.goto('/sessions');
  const row = list.getByRole('row').filter({ hasText: site.called });
  await row.getByText('RUNNING').waitFor();

  // What is typed into a terminal without a connection goes nowhere, and the page says so; then it connects again.
  await page.keyboard.type('echo "before-$((1+1))"\r');
  await page.locator('.xterm-rows').getByText('before-2', { exact: true }).waitFor();

  const form = await context.newPage();
  const image = encodeURIComponent(site.image);
  await form.goto(`/sessions/new?image=${image}&name=after-outage&r=cpu%3D1,mem%3D256m`);
  await form.getByRole('button', { name: /Launch|Put into the queue/ }).waitFor();
  await context.setOffline(true);
  await form.getByRole('button', { name: /Launch|Put into the queue/ }).click();
  await form.getByRole('alert').first().waitFor();
  await screenshot(form, 'outage-offline');
  await context.setOffline(false);
  assert.equal(await form.getByLabel('Name', { exact: false }).first().inputValue(), 'after-outage');

  await askTest('kill');
  await page.getByText('Connected').waitFor({ state: 'hidden' });
  await form.getByRole('button', { name: /Launch|Put into the queue/ }).click();
  await form.getByRole('alert').first().waitFor();
  await list.getByText('No live updates').waitFor();
  await screenshot(list, 'outage-lost');
  await askTest('start');
  await list.getByText('No live updates').waitFor({ state: 'detached' });
  await form.getByRole('button', { name: /Launch|Put into the queue/ }).click();
  await form.waitForURL(/\/sessions\/[0-9a-f-]{36}/);
  await form.getByRole('heading', { level: 1, name: 'after-outage' }).waitFor();
  await form.getByText('RUNNING', { exact: true }).first().waitFor();
  await page.getByText('Connected').waitFor(); // the session has outlived the manager
  await page.locator('.xterm').click();
  await page.keyboard.type('echo "after-$((2+2))"\r');
  await page.locator('.xterm-rows').getByText('after-4', { exact: true }).waitFor();
  await row.getByText('RUNNING').waitFor();
  await list.getByRole('row').filter({ hasText: 'after-outage' }).waitFor(); // told by an event, or by the next look
  await screenshot(list, 'outage-over');
  expectNoFaults();
});
