import { Anchor, Button, Code, Group, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Copy } from '../../../components/Copy';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { SimpleTable } from '../../../components/SimpleTable';
import { formatBytes } from '../../../i18n/format';
import { useFileLink, useRevisionFiles } from '../queries';

/** The files of a revision. Each gets a link when somebody asks for it, since links expire. */
export function RevisionFiles({ revision }: { revision: string }) {
  const { t, i18n } = useTranslation('artifacts');
  const link = useFileLink(revision);
  const [links, setLinks] = useState<Readonly<Record<string, string>>>({});
  const ask = (path: string) =>
    link.mutate(path, { onSuccess: (url) => setLinks((before) => ({ ...before, [path]: url })) });
  return (
    <Card title={t('files')}>
      <Stack gap="sm">
        <Text size="sm" c="dimmed">
          {t('link.means')}
        </Text>
        {link.isError && <ProblemAlert error={link.error} />}
        <Query query={useRevisionFiles(revision)}>
          {({ files }) => (
            <SimpleTable
              label={t('files')}
              rows={files}
              idOf={(file) => file.path}
              minWidth={760}
              columns={[
                { label: t('column.path'), cell: (file) => file.path },
                { label: t('column.size'), cell: (file) => formatBytes(file.size, i18n.language) },
                {
                  label: t('column.action'),
                  cell: ({ path }) => (
                    <Group gap={4} wrap="nowrap">
                      <Button
                        size="compact-xs"
                        variant="default"
                        loading={link.isPending && link.variables === path}
                        disabled={link.isPending}
                        aria-label={t('link.makeOf', { path })}
                        onClick={() => ask(path)}
                      >
                        {t('link.make')}
                      </Button>
                      {links[path] !== undefined && (
                        <>
                          <Anchor
                            href={links[path]}
                            size="sm"
                            target="_blank"
                            rel="noreferrer"
                            download
                            aria-label={t('link.downloadOf', { path })}
                          >
                            {t('link.download')}
                          </Anchor>
                          <Copy value={links[path]} label={t('link.copyOf', { path })} />
                        </>
                      )}
                    </Group>
                  ),
                },
                { label: 'SHA-256', cell: (file) => <Code>{file.sha256}</Code> },
              ]}
            />
          )}
        </Query>
      </Stack>
    </Card>
  );
}
