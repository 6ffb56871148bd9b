import { NativeSelect, Stack, Text } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useTranslation } from 'react-i18next';
import { EmptyState } from '../../../components/EmptyState';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Waiting } from '../../../components/Query';
import { ChatForm } from '../playground/ChatForm';
import { useModels } from '../playground/calls';
import { EmbeddingsForm } from '../playground/EmbeddingsForm';
import { RequestForm } from '../playground/RequestForm';
import { type Mode, modes, usualMode } from '../playground/requests';
import type { ServiceDetails } from '../queries';
import { isLive } from '../rules';

/** Calls the service from the page, as what its models suggest, or as the address says. */
export function PlaygroundTab({ service }: { service: ServiceDetails }) {
  const { t } = useTranslation('playground');
  const { as } = useSearch({ strict: false }) as { as?: Mode };
  const navigate = useNavigate();
  const isCallable = isLive(service.status) && service.service_endpoint !== null;
  const models = useModels(service.endpoint_id, isCallable);
  if (!isCallable) return <EmptyState title={t('notYet')}>{t('notYetHint')}</EmptyState>;
  if (models.isLoading) return <Waiting />;
  const names = models.data ?? [];
  const usual = usualMode(names);
  const mode = as ?? usual;
  return (
    <Stack>
      {models.isError && <ProblemAlert error={models.error} onRetry={() => void models.refetch()} />}
      <NativeSelect
        label={t('mode')}
        w={280}
        data={modes.map((value) => ({ value, label: t(`modes.${value}`) }))}
        value={mode}
        onChange={({ currentTarget: { value } }) =>
          void navigate({
            to: '/services/$id/$tab',
            params: { id: service.endpoint_id, tab: 'playground' },
            search: value === usual ? {} : { as: value as Mode },
          })
        }
      />
      {mode === 'chat' && <ChatForm service={service.endpoint_id} models={names} />}
      {mode === 'embeddings' && <EmbeddingsForm service={service.endpoint_id} models={names} />}
      {mode === 'request' && <RequestForm service={service.endpoint_id} />}
      <Text size="sm" c="dimmed">
        {t('counts')}
      </Text>
    </Stack>
  );
}
export default PlaygroundTab;
