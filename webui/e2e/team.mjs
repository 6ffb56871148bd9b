// Two people and a folder: an invitation, a file of the other's, a look into it, a copy, and the end of the sharing.
import assert from 'node:assert/strict';
import { journey, login, openPage, screenshot, site } from './browser.mjs';

const table = 'name,score\n<img src=x onerror=window.__hacked=1>,1\nbob,2\n';

await journey(async (browser) => {
  const ann = await openPage(browser);
  const bob = await openPage(browser);
  await login(ann.page, site.user, '/folders');
  await ann.page.getByRole('button', { name: 'New folder' }).click();
  await ann.page.getByLabel('Name', { exact: true }).fill('team');
  await ann.page.getByRole('button', { name: 'Create' }).click();
  await ann.page.getByRole('heading', { level: 1, name: 'team' }).waitFor();
  const address = ann.page.url();
  await ann.page.getByLabel('Invite by e-mail address').fill(site.admin.email);
  await ann.page.getByRole('region', { name: 'Sharing' }).getByText('Read and write', { exact: true }).click();
  await ann.page.getByRole('button', { name: 'Invite', exact: true }).click();
  await ann.page.getByText('1 person was invited').waitFor();

  await login(bob.page, site.admin, '/folders');
  const invitations = bob.page.getByRole('region', { name: 'Invitations' });
  await invitations.getByRole('button', { name: 'Accept' }).click();
  await bob.page.getByRole('link', { name: 'team' }).first().click();
  await bob.page.getByRole('heading', { level: 1, name: 'team' }).waitFor();
  await bob.page
    .locator('input[type=file]')
    .setInputFiles({ name: 'scores.csv', mimeType: 'text/csv', buffer: Buffer.from(table) });
  await bob.page.getByText('1 of 1 upload done').waitFor();

  await ann.page.reload();
  await ann.page.getByRole('link', { name: 'scores.csv' }).click();
  await ann.page.getByRole('cell', { name: '<img src=x onerror=window.__hacked=1>' }).waitFor();
  await screenshot(ann.page, 'team-preview');
  assert.equal(await ann.page.evaluate(() => window.__hacked), undefined);
  await ann.page.goBack();
  await ann.page.getByRole('switch', { name: 'It may be copied' }).click();
  await ann.page.getByRole('button', { name: 'Copy', exact: true }).click();
  await ann.page.getByLabel('Name of the copy').fill('team-copy');
  await ann.page.getByRole('dialog').getByRole('button', { name: 'Copy', exact: true }).click();
  await ann.page.getByRole('heading', { level: 1, name: 'team-copy' }).waitFor();
  await ann.page.getByRole('link', { name: 'scores.csv' }).waitFor();

  await ann.page.goto(address);
  await ann.page.getByRole('button', { name: 'End sharing' }).click();
  await ann.page.getByRole('dialog').getByRole('button', { name: 'End sharing' }).click();
  await ann.page.getByText('Nobody else uses this folder.').waitFor();
  await bob.page.goto('/folders');
  await bob.page.getByRole('heading', { level: 1 }).waitFor();
  await bob.page.getByRole('link', { name: 'team', exact: true }).waitFor({ state: 'detached' });
  await screenshot(bob.page, 'team-ended');
  ann.expectNoFaults();
  bob.expectNoFaults();
});
