// A person makes a folder, uploads to it through a broken connection, fetches the file again, and deletes it for ever.
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expectNothingCut, journey, login, openPage, screenshot, site } from './browser.mjs';

const digest = (bytes) => createHash('sha256').update(bytes).digest('hex');

await journey(async (browser) => {
  const { page, context, expectNoFaults } = await openPage(browser, {
    expects: [/ERR_FAILED|ERR_CONNECTION|ERR_INTERNET/],
  });
  await login(page, site.user, '/folders');
  await page.getByRole('button', { name: 'New folder' }).click();
  await page.getByLabel('Name', { exact: true }).fill('journey');
  await page.getByRole('button', { name: 'Create' }).click();
  await page.getByRole('heading', { level: 1, name: 'journey' }).waitFor();

  // The second part is cut off once: the upload goes on where the server's offset is.
  const content = randomBytes(20 << 20);
  let parts = 0;
  await context.route(/\/upload\?token=/, (route) => {
    if (route.request().method() === 'PATCH') parts += 1;
    return route.request().method() === 'PATCH' && parts === 2 ? route.abort('connectionreset') : route.continue();
  });
  await page
    .locator('input[type=file]')
    .setInputFiles({ name: 'data.bin', mimeType: 'application/octet-stream', buffer: content });
  await page.getByText('1 of 1 upload done').waitFor();
  assert.equal(parts, 4, 'three parts of 8 MiB, one of them twice');
  await screenshot(page, 'folders-uploaded');

  const download = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Download data.bin' }).click();
  assert.equal(digest(readFileSync(await (await download).path())), digest(content));

  await page
    .locator('input[type=file]')
    .setInputFiles({ name: 'data.bin', mimeType: 'text/plain', buffer: Buffer.from('new') });
  await page.getByRole('dialog').getByRole('button', { name: 'Replace' }).click();
  await page.getByText('2 of 2 uploads done').waitFor();
  await page.getByRole('cell', { name: '3 B' }).waitFor();
  await page.getByRole('button', { name: 'Rename or move data.bin' }).click();
  await page.getByRole('dialog').getByLabel('Path in the folder').fill('renamed.bin');
  await page.getByRole('dialog').getByRole('button', { name: 'Move' }).click();
  await page.getByRole('link', { name: 'renamed.bin' }).waitFor();

  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  await page.getByRole('button', { name: 'Move to trash' }).click();
  await page.waitForURL(/\/folders$/);
  await page.getByText('Trash', { exact: true }).click();
  await page.getByRole('button', { name: 'Delete journey for ever' }).waitFor();
  await expectNothingCut(page, 'the trash', 1024, 360);
  await screenshot(page, 'folders-trash');
  await page.getByRole('button', { name: 'Delete journey for ever' }).click();
  await page.getByRole('dialog').getByRole('textbox').fill('journey');
  await screenshot(page, 'folders-purge');
  await page.getByRole('dialog').getByRole('button', { name: 'Delete for ever' }).click();
  await page.getByRole('button', { name: 'Delete journey for ever' }).waitFor({ state: 'detached' });
  expectNoFaults();
});
